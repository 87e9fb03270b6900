"""How far a long command is, on a terminal."""

from __future__ import annotations

import sys
import threading
import time


class Meter:
    """Call it with the bytes of each finished piece, from any thread. Says nothing where standard error is no terminal."""

    def __init__(self, total: int, done: int = 0) -> None:
        self._total, self._done, self._shown = total, done, 0.0
        self._lock = threading.Lock()
        self._terminal = sys.stderr.isatty()

    def __call__(self, more: int) -> None:
        with self._lock:
            self._done += more
            now = time.monotonic()
            if self._terminal and (now - self._shown > 0.2 or self._done >= self._total):
                self._shown = now
                end = "\n" if self._done >= self._total else ""
                print(f"\r{self._done / 1e9:6.2f} of {self._total / 1e9:.2f} GB", end=end, file=sys.stderr, flush=True)
