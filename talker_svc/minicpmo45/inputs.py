"""What a step feeds, token by token: codes, and the conditions of units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from talker_svc.minicpmo45.thoughts import Words

CODE, AUDIO_BOS = -1, -2
"""Instead of a text token's id."""
Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Input:
    """What one session feeds in a step: a code, a unit's condition, or both in this order."""

    code: bool
    words: Words | None

    @property
    def ids(self) -> list[int]:
        """Of its tokens."""
        condition = [] if self.words is None else [*self.words.token_ids, AUDIO_BOS]
        return [CODE, *condition] if self.code else condition


@dataclass(frozen=True, slots=True)
class Tokens:
    """N tokens of several sessions, on the host."""

    ids: Ids
    """[N] text ids, CODE or AUDIO_BOS; padding is AUDIO_BOS."""
    hidden_at: Ids
    """[N] the line of `hidden` that belongs to a text token, 0 for others."""
    hidden: tuple[Tensor, ...]
    """[t, llm_dim] each: a line for each text token, session after session."""

    @classmethod
    def of(cls, inputs: Sequence[Input], size: int = 0) -> Tokens:
        """Session after session, padded to `size`."""
        given = [token for each in inputs for token in each.ids]
        ids = np.full(max(size, len(given)), AUDIO_BOS, dtype=np.int64)
        ids[: len(given)] = given
        is_text = ids >= 0
        hidden = tuple(each.words.hidden for each in inputs if each.words is not None and each.words.token_ids)
        return cls(ids, np.where(is_text, np.cumsum(is_text) - 1, 0), hidden)

    @property
    def lines(self) -> int:
        """T: text tokens."""
        return sum(len(each) for each in self.hidden)
