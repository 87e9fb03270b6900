"""Draws codes for many sessions at once; what it must remember of them lies in tensors, a row a session."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from minicpmo45.config import CODE_RATE
from torch_kit.draws import choose, exponentials

PENALTY_WINDOW = 16
"""Codes of the unit that the repetition penalty looks back on."""
DRAW = 2
"""Tells the talker's draws from the thinker's two, which share the session's seed."""
NOT_FINITE = -1
"""Sampled instead of a code where a logit was NaN or infinite, or became so by the temperature."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How a session's codes are drawn."""

    temperature: float = 0.8
    repetition_penalty: float = 1.05
    greedy: bool = False
    seed: int = 0


RULE_FIELDS = 4
NO_RULE = (0,) * RULE_FIELDS
"""Of a row that does not begin a unit."""
_LAST, _MADE, _STOPPED, _RECENT = range(4)


@dataclass(frozen=True, slots=True)
class UnitRule:
    """What holds for a unit's codes."""

    number: int
    """Keys its draws."""
    floor: int
    """The end code is not drawn before this many codes."""
    ending: bool
    """The turn ends here: more than one piece of codes may come, and none but the first is shorter than `min_piece`."""

    @property
    def fields(self) -> tuple[int, ...]:
        """A row of `CodeSampler.begin`."""
        return 1, self.number, self.floor, int(self.ending)


class CodeSampler:
    """The state of `rows` sessions: codes made in the unit, the last ones of them, and how the next is drawn.

    Every tensor stays where it is, so that one step can be captured and replayed: sessions come and go by row. A row that drew the end
    code or had a bad logit is stopped: until its next unit begins it repeats what it drew, and nothing of it changes.
    """

    def __init__(self, rows: int, *, codes: int, min_piece: int, device: torch.device | str = "cpu") -> None:
        self._end = codes - 1
        self._width = codes
        self._min_piece = min_piece

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros((rows, *shape), dtype=dtype, device=device)

        self._state = zeros(_RECENT + PENALTY_WINDOW)
        self._kept = zeros(_RECENT + PENALTY_WINDOW)
        self.last = self._state[:, _LAST]
        """[rows] the code drawn last: the next step's input."""
        self._rules = zeros(RULE_FIELDS - 1)
        self._seed, self._greedy = zeros(), zeros(dtype=torch.bool)
        self._temperature, self._factors = zeros(dtype=torch.float32), zeros(PENALTY_WINDOW + 1, dtype=torch.float32)

    def tune(self, row: int, manner: Manner) -> None:
        """How a session's codes are drawn from now on."""
        self._seed[row], self._greedy[row] = manner.seed, manner.greedy
        self._temperature[row] = manner.temperature
        self._factors[row] = torch.tensor([manner.repetition_penalty]).pow(torch.arange(PENALTY_WINDOW + 1)).to(self._factors.device)

    def begin(self, rows: Tensor, rules: Tensor) -> None:
        """New units: nothing made yet, nothing to repeat. `last` stays, for it may have to be fed.

        `rows` int64 [R]; `rules` int64 [R, RULE_FIELDS]: `UnitRule.fields`, or NO_RULE for a row that goes on as it is.
        """
        begins, state = rules[:, :1] > 0, self._state[rows]
        fresh = torch.full_like(state, self._width)
        fresh[:, _LAST], fresh[:, _MADE], fresh[:, _STOPPED] = state[:, _LAST], 0, 0
        self._state[rows] = torch.where(begins, fresh, state)
        self._rules[rows] = torch.where(begins, rules[:, 1:], self._rules[rows])

    def keep(self) -> None:
        """Notes what `restore` goes back to."""
        self._kept.copy_(self._state)

    def restore(self) -> None:
        """As if nothing had been drawn since `keep`. A unit that began since has to begin again."""
        self._state.copy_(self._kept)

    def sample(self, rows: Tensor, logits: Tensor, injected: Tensor | None = None) -> Tensor:
        """Codes int64 [R] (NOT_FINITE for a row with a bad logit) of logits [R, codes] for the sessions `rows` int64 [R]; fp32 within.

        `injected` [R, codes]: exponential variates to use instead of the session's own.
        """
        state, (unit, floor, ending) = self._state[rows], self._rules[rows].unbind(1)
        made, stopped, recent = state[:, _MADE], state[:, _STOPPED] > 0, state[:, _RECENT:]
        logits = logits.float()
        scores = self._penalised(logits / self._temperature[rows, None], recent, self._factors[rows])
        scores[:, self._end] = torch.where(self._may_end(made, floor, ending > 0), scores[:, self._end], -torch.inf)
        if injected is None:
            injected = exponentials(self._seed[rows], unit, made, DRAW, self._width)
        race = torch.where(self._greedy[rows, None], 1.0, injected)
        # of finite logits a low temperature may make scores that are not
        fine = logits.isfinite().all(-1) & scores.amax(-1).isfinite()
        codes = torch.where(fine, choose(scores.softmax(-1), race), NOT_FINITE)
        codes = torch.where(stopped, state[:, _LAST], codes)
        bad = codes == NOT_FINITE
        newest = torch.stack((codes, made + 1, bad | (codes == self._end)), dim=1)
        # a bad one is no code: the penalty must not look it up
        fresh = torch.cat((newest, recent[:, 1:], codes.masked_fill(bad, self._width)[:, None]), dim=1)
        self._state[rows] = torch.where(stopped[:, None], state, fresh)
        return codes

    def sample_next(self, rows: Tensor, logits: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        """As `sample`, and the lines of `table` [codes, width] that these codes feed next; NOT_FINITE has that of code 0."""
        codes = self.sample(rows, logits)
        return codes, functional.embedding(codes.clamp(min=0), table)

    def _penalised(self, scores: Tensor, recent: Tensor, factors: Tensor) -> Tensor:
        """Each score is made smaller by penalty^frequency among the recent codes: divided if positive, multiplied if negative."""
        counts = torch.zeros((len(scores), self._width + 1), dtype=torch.int64, device=scores.device)
        counts.scatter_add_(1, recent, torch.ones_like(recent))
        factor = factors.gather(1, counts[:, : self._width])
        return torch.where(scores < 0, scores * factor, scores / factor)

    def _may_end(self, made: Tensor, floor: Tensor, ending: Tensor) -> Tensor:
        begun = made % CODE_RATE
        short_piece = ending & (made > CODE_RATE) & (begun > 0) & (begun < self._min_piece)
        allowed: Tensor = (made >= floor) & ~short_piece
        return allowed
