"""What is decided behind a forward: draws and unit rules for all deciding rows at once, on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from thinker_svc.minicpmo45.sampler import Draws, Manner, Sampler, Sampling
from thinker_svc.minicpmo45.script import Script
from thinker_svc.minicpmo45.unit import MOST_UNIT_TOKENS, UnitRules, Units
from thinker_svc.minicpmo45.vocabulary import Vocabulary

NOTHING = -1
"""In place of a token that was not drawn."""
FIELDS = 6
"""Numbers of a deciding row."""


class Decider:
    """Slot-indexed state of sampler and units of `slots` sessions, and the hidden states of what their units say."""

    def __init__(
        self, vocabulary: Vocabulary, slots: int, hidden_size: int, dtype: torch.dtype, device: torch.device, script: Script | None
    ) -> None:
        self._tokens = vocabulary.tokens
        # behind the sessions one row for padding, which nobody reads
        self._spare = slots
        self.sampler = Sampler(vocabulary.tokens, torch.from_numpy(vocabulary.forbidden).to(device), slots + 1)
        self.units = Units(vocabulary.tokens, torch.from_numpy(vocabulary.characters).to(device), slots + 1)
        self.seeds = torch.zeros(slots + 1, dtype=torch.int64, device=device)
        self.states = torch.zeros(slots + 1, MOST_UNIT_TOKENS + 1, hidden_size, dtype=dtype, device=device)
        self.script = script
        self.tune(self._spare, Sampling(), UnitRules(), 0)

    @property
    def padding(self) -> tuple[int, ...]:
        """The numbers of a row that nobody reads."""
        return self._spare, 0, 0, 0, 0, 0

    def tune(self, slot: int, sampling: Sampling, rules: UnitRules, seed: int) -> None:
        """A slot's settings, from its next token on."""
        self.sampler.tune(slot, sampling)
        self.units.tune(slot, rules)
        self.seeds[slot] = seed

    def said(self, slots: Tensor, count: int) -> Tensor:
        """[rows, count, hidden] of the first `count` tokens of the units of `slots`; only of those fed."""
        return self.states[slots, :count]

    def decide(self, numbers: Tensor, hidden: Tensor, logits: Tensor, manner: Manner) -> Tensor:
        """int64 [rows + drafts, 4]: token, ended, finite, drawn; first of all rows, then of the drafts of the first `drafts` rows.

        `numbers` int64 [rows, 4 or more]: slot, unit, goes on, turn is open; with drafts two more: the number of the token behind which it
        is decided, and whether a draft follows it. `hidden` and `logits` [rows + drafts, ...]: behind those tokens, then behind the drafts.
        A row whose draft is wrong, or is none, gets NOTHING for its second token, and no trace of that stays.
        """
        rows = len(numbers)
        first = self._judge(numbers, hidden[:rows], logits[:rows], manner)
        drafts = len(hidden) - rows
        if not drafts:
            return first
        slots, unit, _, _, _, draft = numbers[:drafts].unbind(1)
        token, _, finite, _ = first[:drafts].unbind(1)
        accepted = (draft > 0) & (token == self._tokens.speak) & (finite > 0)
        # what is not to be decided is decided for the padding's slot, where a unit begins each time
        again = torch.stack((torch.where(accepted, slots, self._spare), unit, accepted.long(), torch.zeros_like(unit)), 1)
        second = self._judge(again, hidden[rows:], logits[rows:], manner)
        return torch.cat((first, torch.where(accepted[:, None], second, NOTHING)))

    def _judge(self, numbers: Tensor, hidden: Tensor, logits: Tensor, manner: Manner) -> Tensor:
        """int64 [rows, 4]. One token of each row."""
        slots, unit, goes_on, is_open = numbers[:, :4].unbind(1)
        opening = goes_on == 0
        self.units.begin(slots, opening, is_open > 0)
        step = self.units.step[slots]
        # the state of a unit's last input goes to a place that nobody reads
        self.states[slots, torch.where(opening, MOST_UNIT_TOKENS, step - 1)] = hidden
        finite = logits.isfinite().all(-1)
        script = None if self.script is None else self.script(slots, unit, step)
        draws = Draws(self.seeds[slots], unit, step)
        drawn = self.sampler.sample(slots, logits, draws, self.units.draws(slots), script, manner)
        verdict = self.units.advance(slots, drawn)
        entered = torch.where(self.sampler.entered[slots], drawn, NOTHING)
        return torch.stack((verdict.token, verdict.ended, finite, entered), 1)


def deciding_tokens(numbers: Tensor, drafts: int) -> Tensor:
    """int64 [rows + drafts]: of which tokens of a batch `decide` takes the hidden states."""
    return torch.cat((numbers[:, 4], numbers[:drafts, 4] + numbers[:drafts, 5]))
