"""Tells the server what was taken, so that it can forget it: rarely, and never late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .inbox import Inbox


class Acks:
    """Due after so many events, or so long after the first of them. `wake` is called when one is due."""

    def __init__(self, inbox: Inbox, wake: Callable[[], None], every_events: int, interval_s: float) -> None:
        self._inbox, self._wake = inbox, wake
        self._every, self._interval_s = every_events, interval_s
        self._told = 0
        self._due = False
        self._timer: asyncio.TimerHandle | None = None

    def took(self) -> None:
        """Somebody took an event."""
        untold = self._inbox.taken - self._told
        if untold >= self._every:
            self._fall_due()
        elif untold > 0 and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._fall_due)

    def take_due(self) -> int | None:
        """The number to tell now, once."""
        if not self._due:
            return None
        self._due = False
        self._told = self._inbox.taken
        return self._told

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fall_due(self) -> None:
        self.stop()
        self._due = True
        self._wake()
