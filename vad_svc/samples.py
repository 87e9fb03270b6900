"""A stretch of audio that grows at its end and is forgotten at its start."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Samples:
    """Float32 samples, addressed by their number since the session opened. Append and forget cost amortised constant time a sample."""

    def __init__(self) -> None:
        self._data: NDArray[np.float32] = np.empty(0, np.float32)
        self._length = 0
        self._base = 0
        self.first = 0
        """Number of the first sample that may still be asked for."""

    @property
    def end(self) -> int:
        """Number of the sample that comes next."""
        return self._base + self._length

    def append(self, samples: NDArray[np.float32]) -> None:
        needed = self._length + samples.size
        if needed > self._data.size:
            grown = np.empty(max(needed, 2 * self._data.size), np.float32)
            grown[: self._length] = self._data[: self._length]
            self._data = grown
        self._data[self._length : needed] = samples
        self._length = needed

    def copy(self, start: int, end: int) -> NDArray[np.float32]:
        """Samples [start, end), as far as they are held."""
        start, end = max(start, self.first), min(end, self.end)
        return self._data[start - self._base : max(start, end) - self._base].copy()

    def forget(self, before: int) -> None:
        """Drops what lies before that number."""
        self.first = min(max(before, self.first), self.end)
        stale = self.first - self._base
        if 2 * stale >= self._length:
            kept = self._data[stale : self._length].copy()
            self._data, self._length, self._base = kept, kept.size, self.first
