"""Sound for the units of a log, as far as it comes again."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minicpmo45.config import SAMPLE_RATE_IN
from thinker_svc.minicpmo45.mel import FIRST_SAMPLES, UNIT_SAMPLES
from thinker_svc.minicpmo45.note import Note

Samples = NDArray[np.float32]
PER_MS = SAMPLE_RATE_IN // 1000


class Replay:
    """Gives each unit of a log the sound that it consumed. Positions count 16 kHz samples of the input timeline.

    What does not come again is silence: all before the first sample, and holes. Besides complete units it holds a unit's sound at most.
    """

    def __init__(self, log: Sequence[Note] = ()) -> None:
        self._log = deque(log)
        self._parts: deque[tuple[int, Samples]] = deque()
        """Sound behind the unit before, by its position."""
        self._wanted = FIRST_SAMPLES
        self.end_ms = log[-1].end_ms if log else 0

    @property
    def waits(self) -> bool:
        """There are units whose sound may still come."""
        return bool(self._log)

    def take(self, position: int, samples: Samples) -> tuple[int, list[tuple[Note, Samples]]]:
        """Sound that begins at `position`, and all before came or never will. How many samples belong to the log, and the units that are
        complete with them: fp32 [16480] for the first, [16000] later."""
        came, begin = position + len(samples), position
        units: list[tuple[Note, Samples]] = []
        while self._log:
            end = self._log[0].end_ms * PER_MS
            stop = min(max(end, begin), came)
            self._keep(begin, samples[begin - position : stop - position])
            begin = stop
            if end > came:
                break
            note = self._log.popleft()
            units.append((note, self._sound(note)))
        return begin - position, units

    def _keep(self, position: int, samples: Samples) -> None:
        if not len(samples):
            return
        self._parts.append((position, samples))
        held = sum(len(part) for _, part in self._parts)
        while held - len(self._parts[0][1]) >= FIRST_SAMPLES:
            held -= len(self._parts.popleft()[1])

    def _sound(self, note: Note) -> Samples:
        """The newest sound before the unit's end, as much as it consumed; silence behind it where it was filled, and where it lacks."""
        end, wanted = note.end_ms * PER_MS, self._wanted
        real = min(end - note.start_ms * PER_MS, wanted)
        # the very first of a session may have been filled, too: its sound is at its beginning
        sound = np.zeros(wanted if note.number == 0 else max(real, UNIT_SAMPLES), np.float32)
        came = np.concatenate([sound[:0], *(part for _, part in self._parts)])
        if len(came) >= real:
            sound[:real] = came[len(came) - real :]
        else:
            for position, part in self._parts:
                place = position - (end - real)
                sound[max(place, 0) : max(place + len(part), 0)] = part[max(-place, 0) :]
        self._parts.clear()
        self._wanted = UNIT_SAMPLES
        return np.concatenate((np.zeros(wanted - len(sound), np.float32), sound))
