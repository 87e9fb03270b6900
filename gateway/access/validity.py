"""Whether a key is still good."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from session_store import ApiKey

Why = Literal["missing", "unknown", "revoked", "expired"]


def expiry(key: ApiKey) -> datetime | None:
    """When it expires; None: never, or its text is no time."""
    try:
        return None if key.not_after is None else datetime.fromisoformat(key.not_after)
    except ValueError:
        return None


def fault(key: ApiKey | None, now: datetime | None = None) -> Why | None:
    """Why nothing may be opened with it; None: it may. A time that cannot be read is over."""
    if key is None:
        return "unknown"
    if key.revoked:
        return "revoked"
    if key.not_after is None:
        return None
    ends = expiry(key)
    return "expired" if ends is None or ends <= (now or datetime.now(UTC)) else None
