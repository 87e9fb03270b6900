"""Who may command a session."""

from __future__ import annotations

import msgspec


class Lease(msgspec.Struct, frozen=True):
    """The right to command a session: its generation (rises at each takeover) and the holder's random id."""

    session_id: str
    attachment: int
    holder_id: str
