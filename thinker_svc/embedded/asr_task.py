"""Work for the recognizer: a span of audio, cut into parts, one decode each."""

from __future__ import annotations

import time
from collections import deque
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from stage_kit import Label
from thinker_svc.embedded.asr_recognizer import Recognizer

Part = str | NDArray[np.float32]


class Purpose(IntEnum):
    """Why a span is recognised; lower is more urgent."""

    COMMIT = 0
    GUESS = 1
    SETTLE = 2
    PARTIAL = 3


class Task:
    """Recognises [start_ms, end_ms) of the input timeline part by part; a text among the parts is known already."""

    def __init__(self, start_ms: int, end_ms: int, parts: list[Part], label: Label) -> None:
        self.start_ms = start_ms
        self.end_ms = end_ms
        self.label = label
        self.compute_ms = 0.0
        self._parts = deque(parts)
        self._texts: list[str] = []
        self._take_known()

    @property
    def done(self) -> bool:
        return not self._parts

    @property
    def text(self) -> str:
        return " ".join(filter(None, self._texts))

    def advance(self, recognizer: Recognizer) -> None:
        """One decode. When it raises, nothing has changed."""
        if self._parts and not isinstance(audio := self._parts[0], str):
            started = time.perf_counter()
            text = recognizer.text(audio)
            self.compute_ms += (time.perf_counter() - started) * 1000
            self._parts.popleft()
            self._texts.append(text)
        self._take_known()

    def _take_known(self) -> None:
        while self._parts and isinstance(text := self._parts[0], str):
            self._texts.append(text)
            self._parts.popleft()
