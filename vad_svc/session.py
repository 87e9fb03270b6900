"""What stage `turn` holds for one session."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from stage_kit import Label
from vad_svc.config import TurnConfig
from vad_svc.detector import Detector
from vad_svc.features import SAMPLES as SCORED_SAMPLES
from vad_svc.samples import Samples
from vad_svc.settings import TurnSettings
from vad_svc.silero import FRAME, RATE, SileroState
from vad_svc.timeline import Timeline


class Session:
    """Audio that waits for the detector and the last seconds that it has heard, with the states of the models."""

    def __init__(self, settings: TurnSettings, config: TurnConfig) -> None:
        self._settings = settings
        self.detector = Detector(settings, config)
        self.silero = SileroState()
        self.timeline = Timeline(RATE)
        self.label = Label()
        self.heard_at = 0.0
        """Monotonic second at which audio last came."""
        self.score: Future[float] | None = None
        self.score_deadline = 0.0
        self.next = 0
        """First sample of the next frame."""
        self._samples = Samples()
        self._changes: deque[tuple[int, TurnConfig]] = deque()

    @property
    def received(self) -> int:
        return self.timeline.received

    @property
    def has_frame(self) -> bool:
        return self.received - self.next >= FRAME

    @property
    def stalled(self) -> bool:
        """The next frame waits for the score of the pause."""
        return self.score is not None and self.has_frame and self.detector.must_wait(self.next + FRAME)

    def take(self, samples: NDArray[np.float32], start_ms: int) -> bool:
        """Takes audio in. False when so much waited that its oldest part was dropped."""
        self._samples.append(samples)
        self.timeline.take(samples.size, start_ms)
        excess = self.received - self.next - self._settings.max_pending_s * RATE
        if excess <= 0:
            return True
        self._skip(self.next + excess)
        return False

    def change(self, config: TurnConfig) -> None:
        """From the audio that comes next on."""
        self._changes.append((self.received, config))

    def settle(self) -> None:
        """Applies changes that the next frame has reached, and passes over audio that nobody listens to."""
        while self._changes and (self._changes[0][0] < self.next + FRAME or not self.detector.active):
            position, config = self._changes.popleft()
            was_active = self.detector.active
            if not was_active:
                self._skip(max(position, self.next))
            self.detector.configure(config)
            if not self.detector.awaits_score:
                self.drop_score()
            if self.detector.active and not was_active:
                self.silero = SileroState()
                self.detector.reset(self.next)
        if not self.detector.active:
            self._skip(self.received)

    def frame(self) -> NDArray[np.float32]:
        """The next 512 samples."""
        return self._samples.copy(self.next, self.next + FRAME)

    def passed(self) -> None:
        """The detector has the next frame."""
        self._skip(self.next + FRAME)

    def turn_audio(self) -> NDArray[np.float32]:
        """What Smart Turn hears: the open turn, its last 8 s at most."""
        return self._samples.copy(max(self.detector.turn_start, self.next - SCORED_SAMPLES), self.next)

    def drop_score(self) -> None:
        """Nobody wants it any more."""
        if self.score is not None:
            self.score.cancel()
            self.score = None

    def clear(self) -> None:
        """All audio so far is forgotten and the models start afresh; the count of samples goes on."""
        self.drop_score()
        self._skip(self.received)
        self.timeline.restart()
        self.silero = SileroState()
        self.detector.reset(self.received)

    def _skip(self, to: int) -> None:
        self.next = to
        self._samples.forget(to - SCORED_SAMPLES - FRAME)
        self.timeline.forget(min(self.detector.turn_start, to - SCORED_SAMPLES))
