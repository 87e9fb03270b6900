"""One response at the vocoder: the stretches that wait, and the clock of the sound that was made."""

from __future__ import annotations

from collections import deque

from parley_stage.v1 import stage_pb2

from vocoder_svc.embedded.decoder import RATE_HZ
from vocoder_svc.stretch import Stretch


class Utterance:
    """Counts samples from the response's first one; knows how far the sound is ahead of its listener."""

    def __init__(self, now: float) -> None:
        self.stretches: deque[Stretch] = deque()
        self.complete = False
        self.samples = 0
        """Samples made, pauses included."""
        self.pause_due = False
        self.soundless: list[stage_pb2.Mark] = []
        """Marks of clauses without sound that travel with the next output."""
        self._heard_from = now

    @property
    def waiting(self) -> int:
        """Latent frames not decoded yet."""
        return sum(stretch.waiting for stretch in self.stretches)

    def lead_s(self, now: float) -> float:
        """Seconds of sound made beyond what can have been heard: below zero while someone waits."""
        return self.samples / RATE_HZ - (now - self._heard_from)

    def resume(self, now: float) -> None:
        """New latents after all the sound was used up: what was late is past, the clock goes on from now."""
        self._heard_from = max(self._heard_from, now - self.samples / RATE_HZ)

    def mark(self, mark: stage_pb2.Mark) -> stage_pb2.Mark:
        """The same mark on the clock: the sound so far ends there."""
        return stage_pb2.Mark(text_chars=mark.text_chars, audio_ms=round(self.samples * 1000 / RATE_HZ), sentence_end=mark.sentence_end)

    def skip_soundless(self) -> None:
        """Turns whole stretches without a frame left into marks."""
        while self.stretches and not self.stretches[0].waiting and self.stretches[0].mark is not None:
            self.soundless.append(self.mark(self.stretches.popleft().mark or stage_pb2.Mark()))
