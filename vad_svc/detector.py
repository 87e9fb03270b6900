"""The rules of turn taking over a stream of speech probabilities. Pure: no model, no clock, no input or output."""

from __future__ import annotations

from enum import Enum
from typing import Literal, NamedTuple

from vad_svc.config import TurnConfig
from vad_svc.settings import TurnSettings

SAMPLES_PER_MS = 16

Kind = Literal["speech_started", "pause", "speech_resumed", "speech_stopped"]


class Verdict(NamedTuple):
    """What was decided. Positions are samples at 16 kHz since the session opened."""

    kind: Kind
    at: int
    decided_at: int
    score: float = 0.0
    reason: str = ""


class Judgement(Enum):
    """Where the current pause stands with Smart Turn, when there is no score."""

    NOT_ASKED = "not asked"
    WANTED = "wanted"
    PENDING = "pending"
    FAILED = "failed"


class Detector:
    """One session's turn taking. Feed it frames in order; in semantic mode give it the score that it wants."""

    def __init__(self, settings: TurnSettings, config: TurnConfig) -> None:
        self._settings = settings
        self._config = config
        self._floor = 0
        self.fallback_only = False
        """Smart Turn failed in this session: fixed silence from now on."""
        self._idle()

    def _idle(self) -> None:
        self.open = False
        self._onset: int | None = None
        self._voiced = 0
        self.turn_start = self._floor
        self._voice_end = self._floor
        self._silent = False
        self._announced = False
        self._judgement: Judgement | float = Judgement.NOT_ASKED

    @property
    def active(self) -> bool:
        return self._config.mode != "none"

    @property
    def wants_score(self) -> bool:
        """The pause has reached the length at which Smart Turn is to hear the turn, from turn_start on."""
        return self._judgement is Judgement.WANTED

    def configure(self, config: TurnConfig) -> None:
        """Off ends an open turn in silence; any other change keeps it."""
        self._config = config
        if not self._asks_smart_turn:
            self._judgement = Judgement.NOT_ASKED
        if not self.active:
            self._idle()

    def reset(self, position: int) -> None:
        """The input up to here was cleared: no turn starts before it, and an open one never ends."""
        self._floor = position
        self._idle()

    @property
    def awaits_score(self) -> bool:
        """The score that was asked for still matters."""
        return self._judgement is Judgement.PENDING

    def asked(self) -> None:
        self._judgement = Judgement.PENDING

    def scored(self, probability: float | None) -> None:
        """The answer for the current pause; None when there is none."""
        self._judgement = Judgement.FAILED if probability is None else probability

    def must_wait(self, end: int) -> bool:
        """The frame that ends here could end the turn, and the score that decides it is not there."""
        return self.open and self._silent and self._judgement is Judgement.PENDING and end - self._voice_end >= self._soonest()

    def required_ms(self) -> int:
        """Silence that ends the open turn as things stand."""
        return self._required()[0]

    def frame(self, probability: float, start: int, end: int) -> list[Verdict]:
        """One frame's probability and its samples [start, end)."""
        if not self.active:
            return []
        if not self.open:
            return self._listen(probability, start, end)
        if not self._silent and probability >= self._lower:
            self._voice_end = end
            return []
        if probability >= self._config.threshold:
            return self._resume(start, end)
        self._silent = True
        return self._judge(end)

    def time_out(self, heard: int) -> list[Verdict]:
        """No more audio comes: an open turn ends."""
        return [self._stop(heard, "timeout")] if self.open else []

    def _listen(self, probability: float, start: int, end: int) -> list[Verdict]:
        if probability < self._config.threshold:
            if probability < self._lower:
                self._onset, self._voiced = None, 0
            return []
        if self._onset is None:
            self._onset = start
        self._voiced += end - start
        if self._voiced < self._settings.min_speech_ms * SAMPLES_PER_MS:
            return []
        self.turn_start, self.open, self._voice_end = self._padded(self._onset), True, end
        self._onset, self._voiced = None, 0
        return [Verdict("speech_started", self.turn_start, end, probability)]

    @property
    def _lower(self) -> float:
        return max(self._config.threshold - self._settings.hysteresis, self._config.threshold / 2)

    def _padded(self, onset: int) -> int:
        return max(self._floor, onset - self._config.prefix_padding_ms * SAMPLES_PER_MS)

    def _resume(self, start: int, end: int) -> list[Verdict]:
        announced, self._announced, self._silent = self._announced, False, False
        self._judgement = Judgement.NOT_ASKED
        self._voice_end = end
        return [Verdict("speech_resumed", start, end)] if announced else []

    def _judge(self, end: int) -> list[Verdict]:
        silence_ms = (end - self._voice_end) / SAMPLES_PER_MS
        if self._asks_smart_turn and self._judgement is Judgement.NOT_ASKED and silence_ms >= self._settings.score_silence_ms:
            self._judgement = Judgement.WANTED
        required_ms, reason = self._required()
        if silence_ms >= required_ms:
            return [self._stop(end, reason)]
        if not self._announced and silence_ms >= self._settings.candidate_pause_ms:
            self._announced = True
            return [Verdict("pause", self._voice_end, end)]
        return []

    @property
    def _asks_smart_turn(self) -> bool:
        return self._config.mode == "semantic_vad" and not self.fallback_only

    def _required(self) -> tuple[int, str]:
        if self._config.mode != "semantic_vad":
            return self._config.silence_duration_ms, "silence"
        patience = self._config.patience
        if self.fallback_only or self._judgement is Judgement.FAILED:
            return self._at_least(patience.fallback_ms), "silence"
        if isinstance(self._judgement, float):
            if self._judgement >= patience.immediate:
                return self._at_least(patience.immediate_ms), "smart_turn"
            if self._judgement >= patience.confident:
                return self._at_least(patience.confident_ms), "smart_turn"
        return patience.max_pause_ms, "max_pause"

    def _soonest(self) -> int:
        return self._at_least(self._config.patience.immediate_ms) * SAMPLES_PER_MS

    def _at_least(self, silence_ms: int) -> int:
        return max(self._settings.score_silence_ms, silence_ms)

    def _stop(self, decided_at: int, reason: str) -> Verdict:
        score = self._judgement if isinstance(self._judgement, float) else 0.0
        verdict = Verdict("speech_stopped", self._voice_end, decided_at, score, reason)
        self._floor = self._voice_end
        self._idle()
        return verdict
