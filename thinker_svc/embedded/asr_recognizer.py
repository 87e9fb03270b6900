"""The recognizer with its gate: what is not speech gets no words."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from thinker_svc.embedded.asr_audio import PER_MS, loudness
from thinker_svc.embedded.asr_settings import AsrSettings
from thinker_svc.embedded.moonshine import LEAST_SAMPLES, Heard, Moonshine

_NOISE_TEXTS = frozenset({"You", "So", "I"})
_LOOP_ROUNDS = 3
_LONGEST_LOOP = 12
_UNSURE = -0.4
"""Mean log probability below which a loop is noise."""


class Recognizer:
    """Text of one piece of audio; empty for silence, noise, and what is too short. Raises ModelMissing."""

    def __init__(self, settings: AsrSettings) -> None:
        self._settings = settings
        self._model = Moonshine(settings.models)

    def text(self, samples: NDArray[np.float32]) -> str:
        """Float32 [n] at 16 kHz -> text, cased and punctuated as the model does."""
        if samples.size < max(LEAST_SAMPLES, self._settings.least_ms * PER_MS) or not self.audible(samples):
            return ""
        return self._model.vocabulary.text(spoken(self._model.transcribe(samples)))

    def audible(self, samples: NDArray[np.float32]) -> bool:
        return bool(loudness(samples).max() >= self._settings.silence_rms)

    def warm_up(self) -> None:
        self._model.transcribe(np.zeros(LEAST_SAMPLES * 10, np.float32))


def spoken(heard: Heard) -> tuple[int, ...]:
    """The tokens that stand for speech; none for what the model writes of noise: a bare word without punctuation, notes, an unsure loop.

    A loop that only the token bound ended is cut to its first round: cut-off speech does that.
    """
    if heard.text in _NOISE_TEXTS or not any(character.isalnum() for character in heard.text):
        return ()
    rounds = next(filter(None, (_loop(heard.tokens, period) for period in range(1, _LONGEST_LOOP + 1))), 0) if heard.capped else 0
    if not rounds:
        return heard.tokens
    return heard.tokens[:-rounds] if heard.confidence >= _UNSURE else ()


def _loop(tokens: tuple[int, ...], period: int) -> int:
    """How many tokens at the end only repeat the `period` tokens before them; 0 when it is less than three rounds in all."""
    repeated = 0
    while repeated + period < len(tokens) and tokens[-1 - repeated] == tokens[-1 - repeated - period]:
        repeated += 1
    return repeated if repeated >= (_LOOP_ROUNDS - 1) * period else 0
