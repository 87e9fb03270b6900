"""Addresses from which too many keys were refused within the latest minute."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable

WINDOW_S = 60.0
REMEMBERED = 10_000
"""Addresses at most; who failed longest ago is forgotten first."""


class Failures:
    def __init__(self, most: int, now: Callable[[], float] = time.monotonic) -> None:
        """most: refused keys from one address within a minute; while there are as many, nobody from there is let in."""
        self._most, self._now = most, now
        self._at: OrderedDict[str, deque[float]] = OrderedDict()

    def note(self, address: str) -> None:
        at = self._at.setdefault(address, deque(maxlen=self._most))
        at.append(self._now())
        self._at.move_to_end(address)
        if len(self._at) > REMEMBERED:
            self._at.popitem(last=False)

    def wait_ms(self, address: str) -> int:
        """0: it may try; else milliseconds until it may."""
        at = self._at.get(address)
        if at is None or len(at) < self._most:
            return 0
        left_s = at[0] + WINDOW_S - self._now()
        return max(1, round(left_s * 1000)) if left_s > 0 else 0
