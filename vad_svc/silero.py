"""Silero VAD v6: the probability of speech, one 32 ms frame at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vad_svc.models import SILERO, open_model

RATE = 16_000
FRAME = 512
CONTEXT = 64


class SileroState:
    """What the model remembers of one session: its recurrent state and the last samples before the next frame."""

    __slots__ = ("context", "recurrent")

    def __init__(self) -> None:
        self.recurrent: NDArray[np.float32] = np.zeros((2, 128), np.float32)
        self.context: NDArray[np.float32] = np.zeros(CONTEXT, np.float32)


class Silero:
    """One model for all sessions. Raises ModelMissing."""

    def __init__(self, root: Path | None = None) -> None:
        self._session = open_model(SILERO, root)
        self._rate = np.array(RATE, np.int64)

    def probabilities(self, states: list[SileroState], frames: list[NDArray[np.float32]]) -> list[float]:
        """One frame (float32 [512]) of each of n sessions -> n probabilities; advances the states. The batch changes no result."""
        joined = np.stack([np.concatenate([state.context, frame]) for state, frame in zip(states, frames, strict=True)])
        recurrent = np.stack([state.recurrent for state in states], axis=1)
        output, after = self._session.run(None, {"input": joined, "state": recurrent, "sr": self._rate})
        for row, state in enumerate(states):
            state.recurrent = after[:, row]
            state.context = joined[row, -CONTEXT:]
        return [float(p) for p in output[:, 0]]
