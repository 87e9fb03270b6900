"""Smart Turn v3.2: the probability that a pause ends the turn."""

from __future__ import annotations

import math
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vad_svc.features import log_mel
from vad_svc.models import SMART_TURN, open_model


class InvalidScore(Exception):
    """The model answered something that is no probability."""


class SmartTurn:
    """The model alone. Raises ModelMissing."""

    def __init__(self, root: Path | None = None) -> None:
        self._session = open_model(SMART_TURN, root)

    def score(self, audio: NDArray[np.float32]) -> float:
        """Float32 [n] at 16 kHz, of which the last 8 s count -> probability that the speaker is done. Raises InvalidScore."""
        answer = self._session.run(None, {"input_features": log_mel(audio)[None]})
        return checked(float(answer[0].reshape(-1)[0]))


class Scorer:
    """Runs the model on a thread of its own, one pause after the other, so that no session's frames wait for it."""

    def __init__(self, model: SmartTurn) -> None:
        self._model = model
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="smart-turn")

    def submit(self, audio: NDArray[np.float32]) -> Future[float]:
        """The score comes in the future, or what went wrong. Cancelling it takes it out of the queue."""
        return self._thread.submit(self._model.score, audio)


def checked(probability: float) -> float:
    """Raises InvalidScore unless it is from 0 to 1."""
    if not math.isfinite(probability) or not 0.0 <= probability <= 1.0:
        raise InvalidScore("the end-of-turn model gave no probability")
    return probability
