"""Rows of a forward and their decisions, as numbers for the device and back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from thinker_svc.minicpmo45.template import EMBEDDED
from torch_kit.page_table import Appended


class Row(NamedTuple):
    """One session's tokens of a forward."""

    slot: int
    appended: Appended
    ids: NDArray[np.int64]
    """[n], EMBEDDED where an embedding goes."""
    embeddings: tuple[Tensor, ...] = ()
    """[k, hidden] each, in order."""
    unit: int = -1
    """Not negative: the next token of this unit is decided after the row."""
    opens: bool | None = None
    """Not None: the unit's first token is decided, and the value says whether a turn is open."""
    draft: bool = False
    """The last id is `<|speak|>`, a draft of what is decided behind the one before it. If it is right, the unit's second token is decided,
    too; if not, whoever gave the row takes the draft's place back."""

    @property
    def goes_on(self) -> bool:
        """It feeds the token that was decided last, and nothing else."""
        return self.unit >= 0 and self.opens is None and len(self.ids) == 1 and not self.embeddings


class Decision(NamedTuple):
    """Of a row that decides."""

    token: int
    ended: bool
    """The unit ends with this token."""
    finite: bool
    """False: its logits hold NaN or infinity, and the token means nothing."""
    drawn: int
    """What entered the history of the repetition penalty, which need not be the token; negative: nothing."""


Decisions = tuple[Decision, ...]
"""Of one row: none, if it decides nothing; two, if its draft was right."""


class Deciding(NamedTuple):
    """The rows of a batch that decide; those with a draft come first."""

    rows: list[int]
    """Which of the batch."""
    numbers: NDArray[np.int64]
    """[rows, FIELDS] what `Decider.decide` takes of each."""
    drafts: int
    """How many have a draft."""
    tokens: int
    """Of the whole batch."""

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Deciding:
        """Of the rows of a batch, in the order of its tokens."""
        behind = np.cumsum([row.appended.count for row in rows])
        chosen = [index for index, row in enumerate(rows) if row.unit >= 0]
        drafts = sum(rows[index].draft for index in chosen)
        if drafts:
            chosen.sort(key=lambda index: not rows[index].draft)
        deciding = rows if len(chosen) == len(rows) and not drafts else [rows[index] for index in chosen]
        facts = chain.from_iterable((row.slot, row.unit, row.opens is None, row.opens or False, 0, row.draft) for row in deciding)
        numbers = np.fromiter(facts, np.int64, 6 * len(chosen)).reshape(-1, 6)
        numbers[:, 4] = behind[chosen] - 1 - numbers[:, 5]
        return cls(chosen, numbers, drafts, int(behind[-1]))

    def answers(self, rows: int, packed: NDArray[np.int64], second: int) -> list[Decisions]:
        """The decisions of a batch of `rows` rows, from what `Decider.decide` gave: [lines, 4], the rows' first, the drafts' from line
        `second` on."""
        found = _decisions(packed[: len(self.rows)])
        made: list[Decisions] = list(zip(found))
        if self.drafts:
            drafted = packed[second : second + self.drafts]
            for place in np.flatnonzero(drafted[:, 0] >= 0).tolist():
                made[place] = (*made[place], *_decisions(drafted[place : place + 1]))
        if len(made) == rows and not self.drafts:
            return made
        placed: list[Decisions] = [()] * rows
        for index, each in zip(self.rows, made, strict=True):
            placed[index] = each
        return placed


def token_ids(rows: Sequence[Row]) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """Ids of all tokens of a batch, and which of them are embeddings. Raises ValueError: rows that give another number of embeddings."""
    ids = np.concatenate([row.ids for row in rows])
    places = np.flatnonzero(ids == EMBEDDED)
    given = sum(part.shape[0] for row in rows for part in row.embeddings)
    if len(places) != given:
        raise ValueError(f"embeddings: {given} for {len(places)} places")
    return ids, places


def _decisions(packed: NDArray[np.int64]) -> list[Decision]:
    token, ended, finite, drawn = packed.T
    return list(map(Decision, token.tolist(), (ended != 0).tolist(), (finite != 0).tolist(), drawn.tolist()))
