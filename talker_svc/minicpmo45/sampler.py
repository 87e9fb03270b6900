"""Draws codes for many sessions at once; what it must remember of them lies in tensors, a row a session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minicpmo45.config import CODE_RATE
from torch_kit.draws import choose, exponentials

PENALTY_WINDOW = 16
"""Codes of the unit that the repetition penalty looks back on."""
DRAW = 2
"""Tells the talker's draws from the thinker's two, which share the session's seed."""
NOT_FINITE = -1
"""Sampled instead of a code where a logit was NaN or infinite."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How a session's codes are drawn."""

    temperature: float = 0.8
    repetition_penalty: float = 1.05
    greedy: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class UnitRule:
    """What holds for a unit's codes."""

    number: int
    """Keys its draws."""
    floor: int
    """The end code is not drawn before this many codes."""
    ending: bool
    """The turn ends here: more than one piece of codes may come, and none but the first is shorter than `min_piece`."""


class CodeSampler:
    """The state of `rows` sessions: codes made in the unit, the last ones of them, and how the next is drawn.

    Every tensor stays where it is, so that one step can be captured and replayed: sessions come and go by row.
    """

    def __init__(self, rows: int, *, codes: int, min_piece: int, device: torch.device | str = "cpu") -> None:
        self._end = codes - 1
        self._width = codes
        self._min_piece = min_piece

        def zeros(dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(rows, dtype=dtype, device=device)

        self.last = zeros()
        """[rows] the code drawn last: the next step's input."""
        self._recent = zeros()[:, None].repeat(1, PENALTY_WINDOW)
        self._made, self._floor, self._unit, self._seed = zeros(), zeros(), zeros(), zeros()
        self._ending, self._greedy = zeros(torch.bool), zeros(torch.bool)
        self._temperature, self._penalty = zeros(torch.float32), zeros(torch.float32)

    def tune(self, row: int, manner: Manner) -> None:
        """How a session's codes are drawn from now on."""
        self._seed[row], self._greedy[row] = manner.seed, manner.greedy
        self._temperature[row], self._penalty[row] = manner.temperature, manner.repetition_penalty

    def begin(self, rows: Sequence[int], rules: Sequence[UnitRule]) -> None:
        """New units: nothing made yet, nothing to repeat. `last` stays, for it may have to be fed."""
        device = self.last.device
        where = torch.tensor(rows, device=device)
        fields = torch.tensor([(rule.number, rule.floor, rule.ending) for rule in rules], dtype=torch.int64, device=device)
        self._recent[where] = self._width
        self._made[where] = 0
        self._unit[where], self._floor[where], self._ending[where] = fields[:, 0], fields[:, 1], fields[:, 2].bool()

    def sample(self, rows: Tensor, logits: Tensor, injected: Tensor | None = None) -> Tensor:
        """Codes int64 [R] (NOT_FINITE for a row with a bad logit) of fp32 logits [R, codes] for the sessions `rows` int64 [R].

        `injected` [R, codes]: exponential variates to use instead of the session's own.
        """
        scores = logits / self._temperature[rows, None]
        scores = self._penalised(scores, rows)
        scores[:, self._end] = torch.where(self._may_end(rows), scores[:, self._end], -torch.inf)
        if injected is None:
            injected = exponentials(self._seed[rows], self._unit[rows], self._made[rows], DRAW, self._width)
        race = torch.where(self._greedy[rows, None], 1.0, injected)
        codes = choose(scores.softmax(-1), race)
        codes = torch.where(logits.isfinite().all(-1), codes, NOT_FINITE)
        self.last[rows] = codes
        self._recent[rows] = torch.cat((self._recent[rows, 1:], codes[:, None]), dim=1)
        self._made[rows] += 1
        return codes

    def _penalised(self, scores: Tensor, rows: Tensor) -> Tensor:
        """Each score is made smaller by penalty^frequency among the recent codes: divided if positive, multiplied if negative."""
        counts = scores.new_zeros((len(rows), self._width + 1))
        recent = self._recent[rows]
        counts.scatter_add_(1, recent, torch.ones_like(recent, dtype=counts.dtype))
        factor = torch.pow(self._penalty[rows, None], counts[:, : self._width])
        return torch.where(scores < 0, scores * factor, scores / factor)

    def _may_end(self, rows: Tensor) -> Tensor:
        made, ending = self._made[rows], self._ending[rows]
        begun = made % CODE_RATE
        short_piece = ending & (made > CODE_RATE) & (begun > 0) & (begun < self._min_piece)
        allowed: Tensor = (made >= self._floor[rows]) & ~short_piece
        return allowed
