"""The playback ledger: what sound was sent, when it will have been heard, and how much more may come.

The listener is modelled as a queue that plays in real time from the first write: `play_end` is when it runs dry. A stall (nothing sent
in time) moves it, so heard = sent - max(0, play_end - now). No client can have heard more; a truncate may say less.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from msgspec import Struct

from .commands import AudioOut, MarkOut, StageChunk

MAX_MARKS = 512


class Sound(Struct):
    """The sound of one reply."""

    item_id: str
    samples: int = 0
    rate: int = 24_000
    marks: list[MarkOut] = []
    """Sentence ends only: nothing is cut elsewhere."""

    @property
    def sent_us(self) -> int:
        return self.samples * 1_000_000 // self.rate

    @property
    def sent_ms(self) -> int:
        return self.sent_us // 1000

    def add(self, audio: AudioOut) -> None:
        """A mark lies within the sound it comes with: rounding never puts it behind."""
        self.samples, self.rate = self.samples + audio.samples, audio.rate
        ends = (MarkOut(m.text_chars, min(m.audio_ms, self.sent_ms), True) for m in audio.marks if m.sentence_end)
        self.marks.extend(ends)
        del self.marks[:-MAX_MARKS]

    def text_heard(self, heard_ms: int) -> int:
        """Characters of the text up to the last sentence end whose sound ended by heard_ms."""
        return max((m.text_chars for m in self.marks if m.audio_ms <= heard_ms), default=0)


class Playback(Struct):
    """Flow of reply audio over the whole session; times in elapsed ms, durations in microseconds to add up exactly."""

    sounds: list[Sound] = []
    """Replies that may still be heard, in the order of playing; the newest is the live response's."""
    play_end_us: int = 0
    passed_us: int = 0
    """Audio of the stage that was sent or dropped, since its placement."""
    granted_ms: int = 0

    def lead_us(self, now: int) -> int:
        """What the listener has and has not heard."""
        return max(0, self.play_end_us - now * 1000)

    def ends_at(self) -> int:
        """Elapsed ms at which all that was sent has been heard."""
        return -(-self.play_end_us // 1000)

    def begin(self, item_id: str, now: int) -> None:
        """The sound of a new reply queues behind what still plays."""
        self.sounds = [*(sound for sound, heard_ms in reversed([*self.heard(now)]) if heard_ms < sound.sent_ms), Sound(item_id)]

    def heard(self, now: int) -> Iterator[tuple[Sound, int]]:
        """Each sound with the milliseconds that were heard of it, newest first."""
        unheard = self.lead_us(now)
        for sound in reversed(self.sounds):
            waiting = min(unheard, sound.sent_us)
            unheard -= waiting
            yield sound, (sound.sent_us - waiting) // 1000

    def may_leave(self, audio: AudioOut, now: int, lead_ms: int) -> bool:
        """Sound that is longer than the lead leaves when nothing else plays."""
        lead_us = self.lead_us(now)
        return lead_us == 0 or lead_us + _duration_us(audio) <= lead_ms * 1000

    def leaves_at(self, audio: AudioOut, lead_ms: int) -> int:
        ahead_us = max(0, lead_ms * 1000 - _duration_us(audio))
        return -(-(self.play_end_us - ahead_us) // 1000)

    def sent(self, audio: AudioOut, now: int) -> None:
        duration = _duration_us(audio)
        self.play_end_us = max(self.play_end_us, now * 1000) + duration
        self.passed_us += duration
        self.sounds[-1].add(audio)

    def dropped(self, audio: AudioOut) -> None:
        self.passed_us += _duration_us(audio)

    def silence(self, now: int) -> None:
        """The listener was told to stop: nothing is left to hear."""
        self.play_end_us = min(self.play_end_us, now * 1000)
        self.sounds = []

    def begin_anew(self) -> None:
        """The audio stage was placed anew: its credit counts from its open."""
        self.passed_us = self.granted_ms = 0

    def grant(self, now: int, window_ms: int, step_ms: int) -> int | None:
        """The new grand total when it is worth telling: what has passed, less what is unheard, plus the window. In sound, by steps."""
        lead_us = self.lead_us(now)
        total = (self.passed_us - lead_us) // 1000 + window_ms
        if total - self.granted_ms < min(step_ms if lead_us else 100, window_ms):
            return None
        self.granted_ms = total
        return total


def _duration_us(audio: AudioOut) -> int:
    return audio.samples * 1_000_000 // audio.rate


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

    def clear(self) -> None:
        self._chunks.clear()
