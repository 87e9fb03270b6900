"""What an upgrade request asks for, decided from its query, headers and subprotocols alone. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl

from msgspec import Struct

from gateway.conversation.errors import Refusal

SUBPROTOCOL = "realtime"
SECRET_PREFIX = "ek_"
_KEY_SUBPROTOCOL = "openai-insecure-api-key."
_BETA_SUBPROTOCOL = "openai-beta.realtime-v1"
_BETA_HEADER = "realtime=v1"
_MAX_KEY_CHARS = 512
KEY_FORM = f"at most {_MAX_KEY_CHARS} printable ASCII characters, no spaces, and does not begin with {SECRET_PREFIX}"

# Query parameters that ask for another mode. Ignoring one would start a conversation that the client did not ask for.
_MODES = ("intent", "duplex", "session_id", "call_id", "conversation_id")
_OFF = ("", "0", "false")


class HandshakePolicy(Struct, frozen=True):
    """What this gateway offers."""

    models: tuple[str, ...]
    """Model names that select the profile: its own and its aliases. The first is taken when the client names none."""


class Credential(Struct, frozen=True):
    """What a request shows, by its digest only."""

    digest: str
    """SHA-256 hex of the text."""
    ephemeral: bool
    """It looks like a client secret."""


class ResumeWish(Struct, frozen=True):
    session_id: str
    token: str
    last_event_id: str | None

    def __repr__(self) -> str:
        return f"ResumeWish({self.session_id!r})"


class Handshake(Struct, frozen=True):
    """An upgrade that may go on to admission."""

    model: str
    dialect: str
    subprotocol: str | None
    """What the response must select: exactly "realtime" when the client offered it."""
    extended: bool = False
    """The client hears extension events (`parley=1`)."""
    awaits_resume: bool = False
    """Its first message will be session.resume (`parley=1&resume=1`)."""
    resume: ResumeWish | None = None
    """A stock client wants its session back, by query or headers."""


def decide(query: str, headers: Mapping[str, str], subprotocols: Iterable[str], policy: HandshakePolicy) -> Handshake:
    """Accepts or raises errors.Refusal (beta_api_unsupported, unsupported_mode, model_not_found), in this order. Whether the key is good
    has been asked before.

    query: the raw query string. headers: names in lower case. subprotocols: as offered, in order.
    """
    offered = [name.strip() for name in subprotocols]
    _refuse_beta(headers, offered)
    asked = parse_qsl(query, keep_blank_values=True)
    _refuse_modes(asked)
    values = dict(asked)
    extended = values.get("parley", "").lower() not in _OFF
    resume = values.get("resume") or headers.get("parley-resume", "")
    awaits = extended and resume.lower() not in _OFF and not resume.startswith("sess_")
    return Handshake(
        model=_model(asked, policy),
        dialect="openai_ga",
        subprotocol=SUBPROTOCOL if SUBPROTOCOL in offered else None,
        extended=extended,
        awaits_resume=awaits,
        resume=None if awaits else _resume(resume, values, headers),
    )


def _resume(session_id: str, values: Mapping[str, str], headers: Mapping[str, str]) -> ResumeWish | None:
    if session_id.lower() in _OFF:
        return None
    token = values.get("resume_token") or headers.get("parley-resume-token", "")
    if not session_id.startswith("sess_") or not 1 <= len(token) <= 256 or len(session_id) > 128:
        raise Refusal("unsupported_mode", "resume")
    return ResumeWish(session_id, token, values.get("last_event_id") or headers.get("parley-last-event-id"))


def credential(headers: Mapping[str, str], subprotocols: Iterable[str] = ()) -> Credential | None:
    """The bearer key, or the one in a subprotocol, as browsers send it. None: there is none, or none that can be one."""
    key = _bearer(headers.get("authorization", "")) or _offered_key([name.strip() for name in subprotocols])
    return Credential(digest_key(key), key.startswith(SECRET_PREFIX)) if key else None


def can_be_key(key: str) -> bool:
    """Whether a client can show it, and is not taken to show a client secret."""
    return 0 < len(key) <= _MAX_KEY_CHARS and key.isascii() and key.isprintable() and " " not in key and not key.startswith(SECRET_PREFIX)


def digest_key(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def _bearer(authorization: str) -> str | None:
    scheme, _, key = authorization.strip().partition(" ")
    key = key.strip()
    return key if scheme.lower() == "bearer" and 0 < len(key) <= _MAX_KEY_CHARS else None


def _offered_key(offered: list[str]) -> str | None:
    for name in offered:
        key = name.removeprefix(_KEY_SUBPROTOCOL)
        if key != name and 0 < len(key) <= _MAX_KEY_CHARS:
            return key
    return None


def _refuse_beta(headers: Mapping[str, str], offered: list[str]) -> None:
    """The header is a wish for the beta shape; the subprotocol is one only without "realtime" beside it (browser clients offer both)."""
    if _BETA_HEADER in (part.strip() for part in headers.get("openai-beta", "").lower().split(",")):
        raise Refusal("beta_api_unsupported", "OpenAI-Beta")
    if _BETA_SUBPROTOCOL in offered and SUBPROTOCOL not in offered:
        raise Refusal("beta_api_unsupported", "Sec-WebSocket-Protocol")


def _refuse_modes(asked: list[tuple[str, str]]) -> None:
    for name, value in asked:
        if name in _MODES and value.lower() not in _OFF:
            raise Refusal("unsupported_mode", name)


def _model(asked: list[tuple[str, str]], policy: HandshakePolicy) -> str:
    names = {value for name, value in asked if name == "model"}
    if not names:
        return policy.models[0]
    if len(names) > 1:
        raise Refusal("unsupported_mode", "model")
    (model,) = names
    if model not in policy.models:
        raise Refusal("model_not_found", "model", model=model if model.isprintable() and len(model) <= 128 else "?")
    return model
