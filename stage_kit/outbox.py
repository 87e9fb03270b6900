"""What engines hand to the event loop: one wake for whatever gathers until the loop turns."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Outbox:
    """Calls to make on the event loop, in order. `post` may be called from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._woken = False
        self._gathers = False

    def post(self, call: Callable[[Any], None], argument: Any) -> None:
        """Has the loop run `call(argument)` after all that was posted before."""
        self._calls.append((call, argument))
        if not self._gathers:
            self._wake()

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is posted inside, from any thread, wakes the loop once, at the end. One thread at a time may gather; where two do, the first
        that ends ends it for both."""
        self._gathers = True
        try:
            yield
        finally:
            # falls before the queue is looked at: a post in between wakes the loop once more, and none is lost
            self._gathers = False
            if self._calls:
                self._wake()

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # the loop has closed: the service is gone, and nobody waits for this, nor for what is posted later
                self._woken = False
                self._calls.clear()

    def _drain(self) -> None:
        # the flag falls before the queue is read: a post in between schedules one more, empty, turn and never loses a call
        self._woken = False
        try:
            while self._calls:
                call, argument = self._calls.popleft()
                call(argument)
        finally:
            # where a call raised, the loop is told of it, and those behind it are made all the same
            if self._calls:
                self._wake()
