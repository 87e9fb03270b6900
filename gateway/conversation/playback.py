"""The playback ledger: what sound was sent, when it will have been heard, and how much more may come.

The listener is modelled as a queue that plays in real time from the first write: `play_end` is when it runs dry. A stall (nothing sent
in time) moves it, so heard = sent - max(0, play_end - now). No client can have heard more; a truncate may say less.
"""

from __future__ import annotations

from collections import deque

from msgspec import Struct

from .commands import AudioOut, FinishOut, MarkOut, StageChunk

MAX_MARKS = 512


class Sound(Struct):
    """The sound of one reply."""

    item_id: str = ""
    sent_samples: int = 0
    rate: int = 24_000
    marks: list[MarkOut] = []

    @property
    def sent_ms(self) -> int:
        return self.sent_samples * 1000 // self.rate

    def text_heard(self, heard_ms: int) -> int:
        """Characters of the text up to the last sentence end whose sound ended by heard_ms."""
        return max((m.text_chars for m in self.marks if m.sentence_end and m.audio_ms <= heard_ms), default=0)


class Playback(Struct):
    """Flow of reply audio over the whole session; times in elapsed ms, durations in microseconds to add up exactly."""

    sound: Sound | None = None
    play_end_us: int = 0
    passed_us: int = 0
    """Audio of the stage that was sent or dropped, since its placement."""
    granted_ms: int = 0

    def lead_ms(self, now: int) -> int:
        return max(0, self.play_end_us // 1000 - now)

    def heard_ms(self, now: int) -> int:
        return 0 if self.sound is None else max(0, self.sound.sent_ms - self.lead_ms(now))

    def may_leave(self, audio: AudioOut, now: int, lead_ms: int) -> bool:
        return self.lead_ms(now) + audio.samples * 1000 // audio.rate <= lead_ms or self.lead_ms(now) == 0

    def leaves_at(self, audio: AudioOut, lead_ms: int) -> int:
        return self.play_end_us // 1000 + audio.samples * 1000 // audio.rate - lead_ms

    def sent(self, audio: AudioOut, now: int) -> None:
        duration = audio.samples * 1_000_000 // audio.rate
        self.play_end_us = max(self.play_end_us, now * 1000) + duration
        self.passed_us += duration
        if self.sound is not None:
            self.sound.rate = audio.rate
            self.sound.sent_samples += audio.samples
            self.sound.marks.extend(audio.marks)
            del self.sound.marks[:-MAX_MARKS]

    def dropped(self, audio: AudioOut) -> None:
        self.passed_us += audio.samples * 1_000_000 // audio.rate

    def silence(self, now: int) -> None:
        """The listener was told to stop: nothing is left to hear."""
        self.play_end_us = min(self.play_end_us, now * 1000)

    def grant(self, now: int, window_ms: int) -> int | None:
        """The new grand total when it is worth telling: what has passed, less what is unheard, plus the window."""
        total = self.passed_us // 1000 - self.lead_ms(now) + window_ms
        if total - self.granted_ms < min(100, window_ms):
            return None
        self.granted_ms = total
        return total


class Held:
    """Outputs of the audio stage that wait for their time, in order. Not part of a checkpoint: the stage keeps them, too."""

    def __init__(self) -> None:
        self._chunks: deque[StageChunk] = deque()

    def __len__(self) -> int:
        return len(self._chunks)

    def push(self, chunk: StageChunk) -> None:
        self._chunks.append(chunk)

    def head(self) -> StageChunk | None:
        return self._chunks[0] if self._chunks else None

    def pop(self) -> StageChunk:
        return self._chunks.popleft()


def finish_of(chunk: StageChunk) -> FinishOut:
    return chunk.finish or FinishOut()
