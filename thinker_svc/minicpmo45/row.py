"""Rows of a forward and their decisions, as numbers for the device and back."""

from __future__ import annotations

from collections.abc import Sequence
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
    numbers: list[tuple[int, ...]]
    """What `Decider.decide` takes of each."""
    drafts: int
    """How many have a draft."""

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Deciding:
        """Of the rows of a batch, in the order of its tokens."""
        last = (np.cumsum([row.appended.count for row in rows]) - 1).tolist()
        chosen = sorted((index for index, row in enumerate(rows) if row.unit >= 0), key=lambda index: not rows[index].draft)
        return cls(chosen, [_numbers(rows[index], last[index]) for index in chosen], sum(rows[index].draft for index in chosen))

    def answers(self, rows: int, first: list[list[int]], second: list[list[int]]) -> list[Decisions]:
        """The decisions of a batch of `rows` rows, from what `Decider.decide` gave for these rows and for their drafts."""
        found: list[Decisions] = [()] * rows
        for index, numbers in zip(self.rows, first, strict=True):
            found[index] = (_decision(numbers),)
        for index, numbers in zip(self.rows, second, strict=False):
            if numbers[0] >= 0:
                found[index] = (*found[index], _decision(numbers))
        return found


def token_ids(rows: Sequence[Row]) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """Ids of all tokens of a batch, and which of them are embeddings. Raises ValueError: rows that give another number of embeddings."""
    ids = np.concatenate([row.ids for row in rows])
    places = np.flatnonzero(ids == EMBEDDED)
    given = sum(len(part) for row in rows for part in row.embeddings)
    if len(places) != given:
        raise ValueError(f"embeddings: {given} for {len(places)} places")
    return ids, places


def _numbers(row: Row, last: int) -> tuple[int, ...]:
    return row.slot, row.unit, row.opens is None, bool(row.opens), last - row.draft, row.draft


def _decision(numbers: list[int]) -> Decision:
    token, ended, finite, drawn = numbers
    return Decision(token, bool(ended), bool(finite), drawn)
