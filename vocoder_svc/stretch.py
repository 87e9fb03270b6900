"""A clause's latents on their way through the decoder, in windows that join to exactly what one decode would give."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray
from parley_stage.v1 import stage_pb2

from vocoder_svc.embedded.decoder import CHANNELS, CONTEXT_FRAMES

_TAIL_FRAMES = 12  # a rest this small joins the window before it


class Window(msgspec.Struct, frozen=True):
    """What to decode now and which of its frames to keep."""

    latents: NDArray[np.float32]  # [192, frames], context included
    skip: int  # frames of context before the kept ones
    keep: int  # frames


class Stretch:
    """Latents between `begins` and `ends`; no context crosses its edges."""

    def __init__(self) -> None:
        self._frames = np.zeros((CHANNELS, 0), np.float32)
        self._behind = 0  # frames kept as left context
        self.mark: stage_pb2.Mark | None = None
        """Set when the stretch is whole."""

    @property
    def waiting(self) -> int:
        """Frames not decoded yet."""
        return self._frames.shape[1] - self._behind

    def add(self, frames: NDArray[np.float32]) -> None:
        """Appends float32 [192, frames]."""
        self._frames = np.concatenate((self._frames, frames), axis=1)

    def window(self, frames: int) -> Window | None:
        """The next window, about `frames` long; None while its right context is missing or nothing is left."""
        waiting = self.waiting
        if self.mark is not None and waiting <= frames + _TAIL_FRAMES:
            frames = waiting
        elif self.mark is None and waiting < frames + CONTEXT_FRAMES:
            return None
        if not frames:
            return None
        return Window(latents=self._frames[:, : self._behind + frames + CONTEXT_FRAMES], skip=self._behind, keep=frames)

    def advance(self, frames: int) -> None:
        """`frames` of the next window were decoded."""
        done = self._behind + frames
        forget = max(0, done - CONTEXT_FRAMES)
        self._frames = self._frames[:, forget:]
        self._behind = done - forget
