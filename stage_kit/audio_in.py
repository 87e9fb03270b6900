"""Client audio on its way in: one decoder and resampler for each edge of a session."""

from __future__ import annotations

import numpy as np
from parley_stage.v1 import stage_pb2

from stage_kit.audio import NOTHING, Format, Resampler, decode
from stage_kit.engine import Samples


class AudioIn:
    """Turns the audio of one edge into float32 at the engine's rate. Lives on the engine's thread."""

    def __init__(self, source: Format, rate: int) -> None:
        self.format = source
        self.position = 0
        self.end_ms = 0
        self._rate = rate
        self._resampler = Resampler(source.rate, rate)
        self._carry = NOTHING
        self._owed = 0.0

    def take(self, audio: stage_pb2.Audio, position: int) -> tuple[Samples, int, int]:
        """Samples at the engine's rate (late by the filter's delay), start and end of the audio in ms of the input timeline."""
        decoded = decode(audio.data, self.format.encoding)
        samples = self._resampler.push(decoded)
        self._owed += len(decoded) * self._rate / self.format.rate - len(samples)
        if len(self._carry):
            samples, self._carry = np.concatenate([self._carry, samples]), NOTHING
        self.position = position
        self.end_ms = self.format.ms(audio.start_sample + audio.samples)
        return samples, self.format.ms(audio.start_sample), self.end_ms

    def change(self, source: Format) -> None:
        """The client's format changes: what the old filter holds goes ahead of the next samples."""
        self._carry = np.concatenate([self._carry, self._resampler.flush()])
        self.format, self._resampler, self._owed = source, Resampler(source.rate, self._rate), 0.0

    @property
    def delivered_ms(self) -> float:
        """End of what the engine has, on the input timeline."""
        return self.end_ms - max(0.0, self._owed) * 1000 / self._rate - len(self._carry) * 1000 / self._rate

    def tail(self) -> Samples:
        """What the filter holds back of the audio taken so far; the stream goes on with a fresh filter."""
        tail = self._resampler.flush() if self._owed >= 1 else NOTHING
        samples = np.concatenate([self._carry, tail])
        self._carry, self._owed = NOTHING, 0.0
        return samples

    def clear(self) -> None:
        """Forgets what the filter holds."""
        self.tail()
