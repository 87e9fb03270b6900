"""The loss of a connection in mid-answer, rehearsed: the client cuts its own, once, and what came is counted."""

from __future__ import annotations

import asyncio
import time

import parley
from parley import events


class Rehearsal:
    """Cuts the connection after_ms after an answer's first sound. Times are monotonic seconds."""

    def __init__(self, session: parley.Session, after_ms: int) -> None:
        self._session, self._after_s = session, after_ms / 1000
        self._timer: asyncio.TimerHandle | None = None
        self._cut_at = self._back_at = 0.0
        self._first = self._last = 0
        self._lost: list[str] = []
        self._bytes = self._pieces = 0

    @property
    def away(self) -> bool:
        """Whether the connection is cut and not back yet."""
        return self._cut_at > 0 and self._back_at == 0

    def take(self, event: events.Event) -> str:
        """Notes an event; answers what there is to say of it, or ""."""
        number = events.number(event)
        match event:
            case events.AudioDelta(audio=audio):
                self._bytes, self._pieces = self._bytes + len(audio), self._pieces + 1
                if self._after_s == 0 and self._cut_at == 0:
                    self._cut()
                elif self._timer is None:
                    self._timer = asyncio.get_running_loop().call_later(self._after_s, self._cut)
            case events.Resumed():
                self._back_at = time.monotonic()
                return (
                    f"after {(self._back_at - self._cut_at) * 1000:.0f} ms, at event {self._last}; "
                    f"{event.seq - self._last} came meanwhile; the server has {event.input_samples} samples"
                )
            case events.ResyncRequired(first_seq=first):
                self._lost.append(f"events {self._last + 1} to {first - 1}")
            case events.InputLost(samples=samples, commands=commands, frames=frames):
                self._lost.append(f"{samples} samples, {frames} pictures and {commands} commands of ours")
        if number is not None and not isinstance(event, events.Resumed):
            if number <= self._last:
                self._lost.append(f"the order: event {number} came after {self._last}")
            self._first, self._last = self._first or number, number
        return ""

    def verdict(self) -> str:
        """What was lost, in one line; "" when nothing was."""
        if self._cut_at == 0:
            return "the answer ended before the connection was cut"
        if self.away:
            return "the session did not come back"
        return f"lost: {', '.join(self._lost)}" if self._lost else ""

    def summary(self) -> str:
        """What came, in one line."""
        return f"{self._bytes} bytes in {self._pieces} pieces, events {self._first} to {self._last}, none missing, none twice"

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _cut(self) -> None:
        self._cut_at = time.monotonic()
        self._session.cut()
