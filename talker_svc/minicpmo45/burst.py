"""A burst on its way: who it is for, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from talker_svc.minicpmo45.sampler import NOT_FINITE
from talker_svc.minicpmo45.turn import Turn, Unit
from torch_kit.page_table import PageTable
from torch_kit.staging import Landing


@dataclass(frozen=True, slots=True)
class Job:
    """A session that speaks."""

    row: int
    """Of the sampler."""
    table: PageTable
    turn: Turn


@dataclass(frozen=True, slots=True)
class Burst:
    """What the device was given. Nothing here waits for it but `codes`."""

    jobs: Sequence[Job]
    units: Sequence[Unit]
    """Of each job, to which its codes belong."""
    before: Sequence[int]
    """Where each table stood."""
    firsts: Sequence[int]
    """Tokens of each job's first input."""
    counts: NDArray[np.int64]
    """[jobs] codes that each draws."""
    opened: NDArray[np.int64]
    """[jobs] codes of the step in which units begin, nothing if there is none; read when it has landed, as the next one."""
    stepped: NDArray[np.int64]
    """[steps, N] of the others."""
    going: Sequence[int]
    """The jobs in the first columns of `stepped`."""
    landing: Landing
    end_code: int

    def codes(self) -> list[list[int] | None]:
        """Each job's codes, at least one, once the device has drawn them: the last may be the end code or NOT_FINITE, and none comes after
        these. None: its unit has ended meanwhile, or its turn was dropped.

        The tables hold then what was fed before a code that is finite, and nothing that was placed behind the end of a unit.
        """
        self.landing.wait()
        drawn = self._drawn()
        ends = ((drawn == self.end_code) | (drawn == NOT_FINITE)) & (np.arange(len(drawn))[:, None] < self.counts)
        ended = ends.any(0)
        used = np.where(ended, ends.argmax(0) + 1, self.counts).tolist()
        told: list[list[int] | None] = []
        places = zip(self.jobs, self.units, self.before, self.firsts, strict=True)
        for (job, unit, before, first), codes, count, has_ended in zip(places, drawn.T.tolist(), used, ended.tolist(), strict=True):
            if job.turn.dropped or job.turn.unit is not unit:
                told.append(None)
                continue
            told.append(codes[:count])
            if has_ended:
                finite = count - (codes[count - 1] == NOT_FINITE)
                job.table.rewind(job.table.position - before - (first + finite - 1 if finite else 0))
        return told

    def _drawn(self) -> NDArray[np.int64]:
        out = np.full((int(self.counts.max()), len(self.jobs)), NOT_FINITE, dtype=np.int64)
        if len(self.opened):
            out[0] = self.opened
        if len(self.stepped):
            out[len(out) - len(self.stepped) :, self.going] = self.stepped[:, : len(self.going)]
        return out
