"""Which sample lies at which millisecond of the session's input."""

from __future__ import annotations

from collections import deque


class Timeline:
    """Counts samples at one rate; the count is the clock. A jump of the client's timeline sets a new anchor."""

    def __init__(self, rate: int, slack_ms: int = 100) -> None:
        self._rate = rate
        self._slack_ms = slack_ms
        self._anchors: deque[tuple[int, int]] = deque()
        self.received = 0
        """Samples taken in since the session opened."""

    def take(self, samples: int, start_ms: int) -> None:
        """Counts an append that the client's timeline puts at start_ms. A resampler's delay stays below the slack."""
        if not self._anchors or abs(start_ms - self.ms(self.received)) > self._slack_ms:
            self._anchors.append((self.received, start_ms))
        self.received += samples

    def ms(self, sample: int) -> int:
        """Milliseconds at the start of the sample with this number."""
        base, base_ms = next((anchor for anchor in reversed(self._anchors) if anchor[0] <= sample), (0, 0))
        return base_ms + (sample - base) * 1000 // self._rate

    def forget(self, sample: int) -> None:
        """No earlier sample will be asked for."""
        while len(self._anchors) > 1 and self._anchors[1][0] <= sample:
            self._anchors.popleft()

    def restart(self) -> None:
        """What comes next anchors anew; the count goes on."""
        self._anchors.clear()
