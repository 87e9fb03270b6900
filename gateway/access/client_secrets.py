"""`POST /v1/realtime/client_secrets`: a secret for a browser, with which it opens sessions for a while, as whoever made it."""

from __future__ import annotations

import asyncio
import uuid
from typing import Literal

import msgspec
from starlette.requests import ClientDisconnect, Request

from gateway import metrics
from gateway.conversation.config import SessionConfig, SessionPatch
from gateway.conversation.errors import Refusal
from gateway.hub import Hub
from gateway.opening import OpenRefused
from gateway.wire import WireLimits
from gateway.wire.ga_objects_out import session_object
from gateway.wire.ga_session_in import session_patch
from gateway.wire.ga_session_shapes import SessionShape
from gateway.wire.handshake import SECRET_PREFIX, HandshakePolicy, digest_key
from gateway.wire.problems import from_validation, invalid
from session_store import ClientSecret
from session_store.errors import StoreError
from session_store.tokens import new_token

from .gate import asked
from .principal import Principal

LEAST_S = 10


class _Expires(msgspec.Struct):
    anchor: Literal["created_at"] = "created_at"
    seconds: int | None = None


class _Wanted(msgspec.Struct):
    expires_after: _Expires | None = None
    session: SessionShape | None = None


_decoder = msgspec.json.Decoder(_Wanted)


class SecretMaker:
    def __init__(self, hub: Hub, policy: HandshakePolicy, limits: WireLimits) -> None:
        self._hub, self._policy, self._limits, self._settings = hub, policy, limits, hub.settings

    async def make(self, request: Request) -> bytes:
        """The answer's JSON. Raises OpenRefused and Refusal, and then nothing was made."""
        try:
            told = await self._make(request)
        except OpenRefused as refused:
            metrics.CLIENT_SECRETS.labels(refused.refusal.code).inc()
            raise
        except Refusal as refusal:
            metrics.CLIENT_SECRETS.labels(refusal.code).inc()
            raise
        metrics.CLIENT_SECRETS.labels("made").inc()
        return told

    async def _make(self, request: Request) -> bytes:
        who = await self._hub.gate.enter(asked(request.client, request.headers.raw))
        if who.ephemeral:
            metrics.ACCESS_REFUSALS.labels("ephemeral").inc()
            raise OpenRefused(Refusal("invalid_api_key"))
        wanted = _decoded(await self._body(request))
        ttl_s = self._ttl_s(wanted.expires_after or _Expires())
        patch = self._patch(wanted.session)
        config = self._hub.configured(patch)
        await self._hub.gate.count(who, "secrets", self._settings.client_secrets_per_minute)
        value = SECRET_PREFIX + new_token()
        try:
            expires_at = await self._hub.keep_secret(digest_key(value), _stands_for(who, patch), ttl_s)
        except StoreError as failure:
            raise OpenRefused(Refusal("stages_unavailable", None, stage="session store")) from failure
        return _answer(value, expires_at, config)

    async def _body(self, request: Request) -> bytes:
        most, body = self._settings.max_body_bytes, bytearray()
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > most:
            raise Refusal("body_too_large", None, limit=most)
        try:
            async with asyncio.timeout(self._settings.body_timeout_ms / 1000):
                async for piece in request.stream():
                    body += piece
                    if len(body) > most:
                        raise Refusal("body_too_large", None, limit=most)
        except (TimeoutError, ClientDisconnect):
            raise Refusal("body_timeout") from None
        return bytes(body)

    def _ttl_s(self, wanted: _Expires) -> int:
        most = self._settings.max_client_secret_s
        ttl_s = min(self._settings.client_secret_s, most) if wanted.seconds is None else wanted.seconds
        if not LEAST_S <= ttl_s <= most:
            raise invalid("expires_after.seconds", f"it must be {LEAST_S} to {most}")
        return ttl_s

    def _patch(self, shape: SessionShape | None) -> SessionPatch | None:
        if shape is None:
            return None
        patch = session_patch(shape, self._limits)
        if isinstance(patch.model, str):
            if patch.model not in self._policy.models:
                raise Refusal("model_not_found", "session.model", model=patch.model if patch.model.isprintable() else "?")
            patch = msgspec.structs.replace(patch, model=msgspec.UNSET)
        return patch


def _decoded(body: bytes) -> _Wanted:
    try:
        return _decoder.decode(body or b"{}")
    except msgspec.ValidationError as error:
        raise from_validation(error) from None
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        raise Refusal("invalid_json") from None


def _stands_for(who: Principal, patch: SessionPatch | None) -> ClientSecret:
    return ClientSecret(key_id=who.key_id, tenant=who.tenant, session=b"" if patch is None else msgspec.msgpack.encode(patch))


def _answer(value: str, expires_at: int, config: SessionConfig) -> bytes:
    """The session is what one would begin with; there is none yet, so its id is nobody's."""
    session = session_object(f"sess_{uuid.uuid4().hex}", config.told, None)
    return msgspec.json.encode({"value": value, "expires_at": expires_at, "session": session})
