"""Units out of a client's samples: how much of the input timeline each one is."""

from __future__ import annotations

from collections import deque

import msgspec
import numpy as np
from numpy.typing import NDArray

from minicpmo45.config import SAMPLE_RATE_IN
from thinker_svc.minicpmo45.mel import FIRST_SAMPLES, UNIT_SAMPLES

Samples = NDArray[np.float32]
_PER_MS = SAMPLE_RATE_IN // 1000


class HeardUnit(msgspec.Struct, frozen=True):
    """The sound of a unit, complete."""

    samples: Samples
    """fp32 [16480] for the first of a session, [16000] later."""
    first: bool
    start_ms: int
    """On the input timeline."""
    end_ms: int
    """Where its real sound ends: silence behind it does not count."""
    complete_at: float
    """Monotonic second at which it was complete."""

    @property
    def consumed_ms(self) -> int:
        return self.end_ms - self.start_ms


class Gatherer:
    """Collects one session's samples. Times are milliseconds of the input timeline."""

    def __init__(self) -> None:
        self.waiting: deque[HeardUnit] = deque()
        """Complete units, oldest first."""
        self._parts: list[Samples] = []
        self._count = 0
        self._began: int | None = None
        self._before = 0
        self._units = 0
        self._end_ms: int | None = None

    @property
    def begun(self) -> bool:
        """A first sample came, ever."""
        return self._began is not None

    @property
    def start_ms(self) -> int:
        """Where the open unit starts."""
        return (self._began or 0) + self._before // _PER_MS

    @property
    def end_ms(self) -> int:
        """Where the open unit ends, if real sound fills it."""
        return (self._began or 0) + (self._before + self._wanted) // _PER_MS

    @property
    def held_ms(self) -> int:
        """Sound that waits, complete units included."""
        return (self._count + sum(len(unit.samples) for unit in self.waiting)) // _PER_MS

    def push(self, samples: Samples, start_ms: int, end_ms: int, now: float) -> None:
        """Samples that come next; a hole in the timeline moves what follows it."""
        if self._began is None:
            self._began = start_ms
        elif self._end_ms is not None and start_ms != self._end_ms:
            self._began += start_ms - self._end_ms
        self._end_ms = end_ms
        while len(samples):
            taken = samples[: self._wanted - self._count]
            self._parts.append(taken)
            self._count += len(taken)
            samples = samples[len(taken) :]
            if self._count == self._wanted:
                self._complete(now)

    def silence(self, now: float) -> None:
        """Fills the open unit with silence."""
        real = self._count
        self._parts.append(np.zeros(self._wanted - real, np.float32))
        self._complete(now, real)

    def clear(self) -> None:
        """Forgets all sound that no unit has heard yet. The timeline goes on where the next samples say."""
        self._before += self._count
        self._units -= len(self.waiting)
        self.waiting.clear()
        self._parts, self._count = [], 0

    @property
    def _wanted(self) -> int:
        return FIRST_SAMPLES if self._units == 0 else UNIT_SAMPLES

    def _complete(self, now: float, real: int | None = None) -> None:
        start = self.start_ms
        self._before += self._count if real is None else real
        samples = np.concatenate(self._parts).astype(np.float32, copy=False)
        self.waiting.append(HeardUnit(samples, self._units == 0, start, self.start_ms, now))
        self._units += 1
        self._parts, self._count = [], 0
