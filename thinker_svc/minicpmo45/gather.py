"""Units out of a client's samples: how much of the input timeline each one is."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec
import numpy as np

from minicpmo45.config import UNIT_MS
from thinker_svc.minicpmo45.mel import FIRST_SAMPLES, UNIT_SAMPLES
from thinker_svc.minicpmo45.note import Note
from thinker_svc.minicpmo45.replay import PER_MS, Replay, Samples

_MOST_AGAIN = 60 * 1000 * PER_MS
"""Samples that may come again and count for nothing."""


class HeardUnit(msgspec.Struct, frozen=True):
    """The sound of a unit, complete."""

    samples: Samples
    """fp32 [16480] for the first of a session, [16000] later."""
    first: bool
    start_ms: int
    """On the input timeline."""
    end_ms: int
    """Where its real sound ends: silence behind it does not count."""
    complete_at: float
    """Monotonic second at which it was complete."""
    noted: Note | None = None
    """It is a unit of the session's log: what was decided in it is known."""

    @property
    def consumed_ms(self) -> int:
        return self.end_ms - self.start_ms


class Gatherer:
    """Collects one session's samples: those that come again for the units of its `log`, then those of new ones, which begin where the log
    ends. Times are milliseconds of the input timeline."""

    def __init__(self, log: Sequence[Note] = ()) -> None:
        self.waiting: deque[HeardUnit] = deque()
        """Complete units, oldest first."""
        self._parts: list[Samples] = []
        self._count = 0
        self._began: int | None = None
        self._before = 0
        self._units = 0
        self._filled = 0
        """Silence, in samples, that closed the unit before early."""
        self._end_ms: int | None = None
        self._replay = Replay(log)

    @property
    def begun(self) -> bool:
        """A first sample came, ever."""
        return self._began is not None

    @property
    def start_ms(self) -> int:
        """Where the open unit starts."""
        return (self._began or 0) + self._before // PER_MS

    @property
    def end_ms(self) -> int:
        """Where the open unit ends, if real sound fills it."""
        return (self._began or 0) + (self._before + self._wanted) // PER_MS

    @property
    def replays(self) -> bool:
        """There are units of the log that are not complete."""
        return self._replay.waits

    @property
    def next_span(self) -> tuple[int, int]:
        """Start and end of the next unit that is not of the log, if real sound fills it."""
        for unit in self.waiting:
            if unit.noted is None:
                return unit.start_ms, unit.end_ms
        if self.replays:
            return self._replay.end_ms, self._replay.end_ms + UNIT_MS
        return self.start_ms, self.end_ms

    def held_ms(self, heard_until_ms: int = 0) -> int:
        """Sound that waits, complete units included. What is only heard again does not count: the log's, and up to a minute of units that
        end by `heard_until_ms`."""
        again = new = 0
        for unit in self.waiting:
            if unit.noted is None and unit.end_ms <= heard_until_ms:
                again += len(unit.samples)
            elif unit.noted is None:
                new += len(unit.samples)
        return (self._count + new + max(0, again - _MOST_AGAIN)) // PER_MS

    def push(self, samples: Samples, start_ms: int, end_ms: int, now: float) -> None:
        """Samples that come next; a hole in the timeline moves what follows it, an overlap of roundings does not."""
        if self._began is None:
            self._began = start_ms
        elif self._end_ms is not None and start_ms > self._end_ms:
            self._began += start_ms - self._end_ms
        self._end_ms = end_ms
        if self.replays:
            samples = self._hear_again(samples, now)
        while len(samples):
            taken = samples[: self._wanted - self._count]
            self._parts.append(taken)
            self._count += len(taken)
            samples = samples[len(taken) :]
            if self._count == self._wanted:
                self._complete(now)

    def silence(self, now: float) -> None:
        """Fills the open unit with silence, behind whole milliseconds of sound: so they are noted. What is over begins the next unit."""
        sound = np.concatenate([np.zeros(0, np.float32), *self._parts])
        real = self._count - self._count % PER_MS
        self._parts = [sound[:real], np.zeros(self._wanted - real, np.float32)]
        self._complete(now, real)
        if len(sound) > real:
            self._parts, self._count = [sound[real:]], len(sound) - real

    def close(self, now: float) -> None:
        """Fills the open unit with silence before its time; `skip` may make up for it. One that has no sound stays open."""
        filled = self._wanted - (self._count - self._count % PER_MS)
        if self._count >= PER_MS:
            self.silence(now)
            self._filled = filled

    def skip(self, start_ms: int, end_ms: int) -> None:
        """Passes over the sound of the open unit up to there, which is silence, if the unit begins at `start_ms` behind one that was closed
        early: as much as came, and as closed that one."""
        count = min((end_ms - start_ms) * PER_MS, self._filled, self._count)
        count -= count % PER_MS
        if start_ms != self.start_ms or count <= 0:
            return
        self._parts = [np.concatenate(self._parts)[count:]]
        self._count, self._before, self._filled = self._count - count, self._before + count, 0

    def clear(self) -> None:
        """Forgets all sound that no unit has heard yet, here or before. The timeline goes on where the next samples say."""
        self._before += self._count
        kept = deque(unit for unit in self.waiting if unit.noted is not None)
        self._units -= len(self.waiting) - len(kept)
        self.waiting = kept
        self._parts, self._count, self._filled = [], 0, 0

    @property
    def _wanted(self) -> int:
        return FIRST_SAMPLES if self._units == 0 else UNIT_SAMPLES

    def _hear_again(self, samples: Samples, now: float) -> Samples:
        """Gives the log its part of the sound that comes next; the rest."""
        taken, units = self._replay.take((self._began or 0) * PER_MS + self._before, samples)
        self._before += taken
        for note, sound in units:
            self.waiting.append(HeardUnit(sound, self._units == 0, note.start_ms, note.end_ms, now, note))
            self._units += 1
        return samples[taken:]

    def _complete(self, now: float, real: int | None = None) -> None:
        start = self.start_ms
        self._before += self._count if real is None else real
        samples = np.concatenate(self._parts).astype(np.float32, copy=False)
        self.waiting.append(HeardUnit(samples, self._units == 0, start, self.start_ms, now))
        self._units += 1
        self._parts, self._count, self._filled = [], 0, 0
