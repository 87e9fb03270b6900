"""Names of keys. One session's keys share a hash slot, the deployment's share another, so that a Redis Cluster serves them."""

from __future__ import annotations

import re

from session_store.tokens import check_digest

POOL = "parley:{pool}"
API_KEYS = "parley:{keys}"
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_STAGE = re.compile(r"[a-z][a-z0-9_]{0,63}")


def session_keys(session_id: str) -> tuple[str, str, str, str]:
    """Record, checkpoint, journal payloads, journal heads of one session. Raises ValueError for an id that no key can carry."""
    prefix = f"parley:{{{check_id(session_id)}}}"
    return f"{prefix}:rec", f"{prefix}:ckpt", f"{prefix}:jrnl", f"{prefix}:jhead"


def secret_key(digest: str) -> str:
    """Where a client secret lies. Raises ValueError for what is no digest."""
    return f"parley:{{{check_digest(digest)}}}:secret"


def rate_key(who: str, what: str) -> str:
    """Where it lies how often somebody did this lately."""
    return f"parley:{{{check_id(who)}}}:rate:{check_id(what)}"


def check_id(value: str) -> str:
    """The id itself: 1 to 128 of letters, digits, `_`, `.`, `:` and `-`. Raises ValueError."""
    if not _ID.fullmatch(value):
        raise ValueError("an id has 1 to 128 letters, digits, '_', '.', ':' or '-'")
    return value


def check_stage(value: str) -> str:
    """The stage name itself: a lower-case identifier of at most 64 characters. Raises ValueError."""
    if not _STAGE.fullmatch(value):
        raise ValueError("a stage name is a lower-case identifier of at most 64 characters")
    return value
