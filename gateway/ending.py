"""How a session ends here."""

from __future__ import annotations

import msgspec


class Ending(msgspec.Struct, frozen=True):
    """How an actor ended: the WebSocket close code and its reason."""

    code: int
    reason: str


SUPERSEDED = Ending(1008, "session_taken_over")
REAPED = Ending(1008, "session_expired")
"""Somebody ended it because this gateway seemed to be dead."""
LOST = (SUPERSEDED, REAPED)
"""Endings after which nothing of the session is ours: not its stages, not what waits for its socket."""
