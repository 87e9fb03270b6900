"""The gate: every upgrade and every request that costs something passes it, or is refused with the right status and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import structlog
from msgspec import Struct

from gateway import metrics
from gateway.conversation.config import SessionPatch
from gateway.conversation.errors import Refusal
from gateway.opening import OpenRefused
from gateway.settings import Settings
from gateway.wire.handshake import Credential, credential
from session_store import ApiKey, Store
from session_store.errors import StoreError, StoreUnavailable

from .addresses import Proxies, neighbourhood
from .failures import Failures
from .keyring import Keyring
from .origins import Origins
from .principal import Principal, principal_of
from .validity import Why, fault

log = structlog.get_logger()


class Asked(Struct, frozen=True):
    """What the gate looks at of a request."""

    peer: str | None
    forwarded: str
    origin: str | None
    host: str | None
    credential: Credential | None


def asked(peer: Sequence[object] | None, headers: Iterable[tuple[bytes, bytes]], subprotocols: Iterable[str] = ()) -> Asked:
    """Of an ASGI scope's `client`, `headers` and `subprotocols`."""
    every = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    one = dict(every)
    forwarded = ",".join(value for name, value in every if name == "x-forwarded-for")
    return Asked(str(peer[0]) if peer else None, forwarded, one.get("origin"), one.get("host"), credential(one, subprotocols))


class _Unknown(Exception):
    def __init__(self, why: Why, key_id: str = "") -> None:
        super().__init__(why)
        self.why: Why = why
        self.key_id = key_id


class Gate:
    def __init__(self, settings: Settings, store: Store, keyring: Keyring) -> None:
        self._settings, self._store, self._keyring = settings, store, keyring
        self._origins, self._proxies = Origins(settings.allowed_origins), Proxies(settings.trusted_proxies)
        self._failures = Failures(settings.failed_auth_per_minute)

    async def enter(self, request: Asked) -> Principal:
        """Who it is. Raises OpenRefused: rate_limit_exceeded (its address), origin_not_allowed, invalid_api_key, or no store to ask."""
        address = neighbourhood(self._proxies.client(request.peer, request.forwarded))
        self._still_may_try(address)
        if not self._origins.allow(request.origin, request.host):
            metrics.ACCESS_REFUSALS.labels("origin").inc()
            raise OpenRefused(Refusal("origin_not_allowed", "Origin"))
        try:
            who = await self._known(request.credential)
            self._still_may_try(address)
            return who
        except _Unknown as unknown:
            self._still_may_try(address)
            self._failures.note(address)
            metrics.ACCESS_REFUSALS.labels(unknown.why).inc()
            log.info("no good key", why=unknown.why, address=address, key=unknown.key_id or None)
            raise OpenRefused(Refusal("invalid_api_key")) from None
        except StoreError as failure:
            log.warning("keys not asked", why=type(failure).__name__)
            raise OpenRefused(Refusal("stages_unavailable", None, stage="session store")) from failure

    def _still_may_try(self, address: str) -> None:
        """Asked again once a key was judged, since many may be judged at once. Raises OpenRefused."""
        if wait_ms := self._failures.wait_ms(address):
            raise refused("address_rate", wait_ms)

    async def count(self, who: Principal, what: str, most: int) -> None:
        """One more of what a key may do so often within a minute. Raises OpenRefused with rate_limit_exceeded."""
        if not who.key_id:
            return
        try:
            wait_ms = await self._store.rates.take(who.key_id, what, most)
        except StoreError as failure:
            raise OpenRefused(Refusal("stages_unavailable", None, stage="session store")) from failure
        if wait_ms:
            raise refused("key_rate", wait_ms)

    async def count_open(self, who: Principal) -> None:
        """One more session asked for. Raises OpenRefused."""
        await self.count(who, "opens", who.opens_per_minute or self._settings.opens_per_minute)

    async def revoked(self, key_ids: Iterable[str]) -> set[str]:
        """Those of the keys that were revoked, not those that nobody knows: a store may have lost them, or be away."""
        asked = {key_id for key_id in key_ids if key_id}
        keys = await self._keyring.kept(asked)
        for key_id in asked - keys.keys():
            try:
                if (key := await self._keyring.get(key_id)) is not None:
                    keys[key_id] = key
            except StoreUnavailable:
                break
            except StoreError:
                log.warning("a key cannot be read", key=key_id)
        return {key_id for key_id, key in keys.items() if fault(key) == "revoked"}

    async def _known(self, shown: Credential | None) -> Principal:
        if shown is None:
            if self._keyring.asks:
                raise _Unknown("missing")
            return Principal()
        if shown.ephemeral:
            return await self._by_secret(shown.digest)
        if not self._keyring.asks:
            return Principal(shown.digest)
        key = await self._keyring.find(shown.digest)
        return principal_of(_good(key))

    async def _by_secret(self, digest: str) -> Principal:
        secret = await self._store.client_secrets.find(digest)
        if secret is None:
            raise _Unknown("expired")
        who = Principal(secret.tenant)
        if secret.key_id or self._keyring.asks:
            maker = await self._keyring.get(secret.key_id) if secret.key_id else None
            who = principal_of(_good(maker))
            if who.tenant != secret.tenant:
                raise _Unknown("unknown", who.key_id)  # another key has its maker's id by now
        try:
            patch = msgspec.msgpack.decode(secret.session, type=SessionPatch) if secret.session else None
        except (msgspec.MsgspecError, UnicodeError):
            raise StoreError("a client secret cannot be read") from None  # another version of the gateway made it
        return msgspec.structs.replace(who, ephemeral=True, patch=patch)


def _good(key: ApiKey | None) -> ApiKey:
    if key is None:
        raise _Unknown("unknown")
    if (why := fault(key)) is not None:
        raise _Unknown(why, key.id)
    return key


def refused(why: str, wait_ms: int) -> OpenRefused:
    metrics.ACCESS_REFUSALS.labels(why).inc()
    return OpenRefused(Refusal("rate_limit_exceeded", None, retry_after_s=max(1, -(-wait_ms // 1000))), wait_ms)


__all__ = ["Asked", "Gate", "asked", "refused"]
