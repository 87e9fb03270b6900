"""Who was let in, and how much it may have."""

from __future__ import annotations

from msgspec import Struct

from gateway.conversation.config import SessionPatch
from session_store import ApiKey

ANONYMOUS = "anonymous"


class Principal(Struct, frozen=True):
    """A bound that is None is the gateway's setting of the same name."""

    tenant: str = ANONYMOUS
    key_id: str = ""
    """Empty: no key is asked for here, and nothing is counted by key."""
    max_sessions: int | None = None
    tenant_max_sessions: int | None = None
    opens_per_minute: int | None = None
    ephemeral: bool = False
    """By a client secret, with which no other can be made."""
    patch: SessionPatch | None = None
    """What the secret's sessions begin with."""


def principal_of(key: ApiKey) -> Principal:
    return Principal(key.tenant, key.id, key.max_sessions, key.tenant_max_sessions, key.opens_per_minute)
