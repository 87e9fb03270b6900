"""A session's recent audio on its input timeline, and where it is quiet."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

RATE = 16_000
PER_MS = RATE // 1000
_FRAME = 30 * PER_MS
_HOP = 10 * PER_MS


class AudioRing:
    """Float32 at 16 kHz, addressed by milliseconds of the input timeline. Counts samples; a jump of the timeline is filled with silence."""

    def __init__(self, most_ms: int, slack_ms: int = 100) -> None:
        self._most = most_ms * PER_MS
        self._slack = slack_ms * PER_MS
        self._data: NDArray[np.float32] = np.empty(0, np.float32)
        self._length = 0
        self._base = 0
        self._first = 0
        self._arrivals: deque[tuple[float, int]] = deque()
        self._judged = 0

    @property
    def start_ms(self) -> int:
        return self._first // PER_MS

    @property
    def end_ms(self) -> int:
        return self._end // PER_MS

    @property
    def _end(self) -> int:
        return self._base + self._length

    def append(self, samples: NDArray[np.float32], start_ms: int, now: float) -> bool:
        """Takes audio that the client's timeline puts at start_ms. False when the oldest audio was dropped for it."""
        gap = start_ms * PER_MS - self._end
        if self._length == 0 or gap < -self._slack or gap > self._most:
            self._restart(start_ms * PER_MS)
        elif gap > self._slack:
            self._extend(np.zeros(gap, np.float32))
        self._extend(samples)
        if not self._arrivals or now - self._arrivals[-1][0] >= 0.5:
            self._arrivals.append((now, self._end))
        excess = self._end - self._first - self._most
        if excess > 0:
            self._forget(self._first + excess)
        return excess <= 0

    def copy(self, start_ms: int, end_ms: int) -> NDArray[np.float32]:
        """Audio of [start_ms, end_ms), as far as it is held."""
        start, end = max(start_ms * PER_MS, self._first), min(end_ms * PER_MS, self._end)
        return self._data[start - self._base : max(start, end) - self._base].copy()

    def forget(self, before_ms: int) -> None:
        """Drops what is older."""
        self._forget(before_ms * PER_MS)

    def clear(self) -> None:
        self._restart(self._end)

    def judged_ms(self, came_before: float) -> int:
        """Up to where the audio came before that monotonic second."""
        while self._arrivals and self._arrivals[0][0] <= came_before:
            self._judged = self._arrivals.popleft()[1]
        return self._judged // PER_MS

    def _restart(self, position: int) -> None:
        self._data, self._length = np.empty(0, np.float32), 0
        self._base = self._first = self._judged = position
        self._arrivals.clear()

    def _extend(self, samples: NDArray[np.float32]) -> None:
        needed = self._length + samples.size
        if needed > self._data.size:
            grown = np.empty(max(needed, 2 * self._data.size), np.float32)
            grown[: self._length] = self._data[: self._length]
            self._data = grown
        self._data[self._length : needed] = samples
        self._length = needed

    def _forget(self, before: int) -> None:
        self._first = min(max(before, self._first), self._end)
        stale = self._first - self._base
        if stale > 0 and 2 * stale >= self._length:
            kept = self._data[stale : self._length].copy()
            self._data, self._length, self._base = kept, kept.size, self._first


def loudness(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """Root mean square of each 30 ms, every 10 ms: float32 [frames]; of the whole when it is shorter."""
    if samples.size < _FRAME:
        return np.sqrt(np.mean(np.square(samples), keepdims=True)) if samples.size else np.zeros(1, np.float32)
    power = np.lib.stride_tricks.sliding_window_view(np.square(samples), _FRAME)[::_HOP].mean(axis=1)
    return np.asarray(np.sqrt(power), np.float32)


def quietest_cut(samples: NDArray[np.float32], least: int, most: int) -> int:
    """Number of samples, from least to most, after which a cut disturbs fewest words: the middle of the quietest 150 ms."""
    levels = loudness(samples[least:most])
    width = min(15, levels.size)
    smooth = np.convolve(levels, np.ones(width), "valid")
    return least + (int(smooth.argmin()) + width // 2) * _HOP + _FRAME // 2


def pieces(samples: NDArray[np.float32], most: int) -> list[NDArray[np.float32]]:
    """Cuts audio into pieces of at most `most` samples, each but the last at least half as long."""
    cut: list[NDArray[np.float32]] = []
    while samples.size > most:
        at = quietest_cut(samples, most // 2, most)
        cut.append(samples[:at])
        samples = samples[at:]
    return [*cut, samples]
