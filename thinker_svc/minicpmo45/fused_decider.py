"""`Decider.decide` by a handful of Triton kernels (`kernels/`): the same tokens, texts and state."""

from __future__ import annotations

import torch
from torch import Tensor

from minicpmo45.tokens import Tokens
from thinker_svc.minicpmo45.decider import Decider
from thinker_svc.minicpmo45.kernels.memory import remember
from thinker_svc.minicpmo45.kernels.settle import Script, Slots, settle
from thinker_svc.minicpmo45.kernels.shortlist import shortlist
from thinker_svc.minicpmo45.kernels.survey import survey
from thinker_svc.minicpmo45.sampler import Manner

WIDE_ROWS = 16
"""Rows that the plain path judges at once."""


class FusedDecider:
    """Decides over the state of a `Decider`, which stays where it is: what tunes a slot there holds here.

    What a step takes besides the logits: 20 kB of bits and 20 kB of highest scores a line. Where a row may draw among all ids
    (`Manner.WIDE`) the plain path decides, WIDE_ROWS rows at a time: some 200 MB and 400 kernels for so many.
    """

    def __init__(self, decider: Decider, tokens: Tokens) -> None:
        self._decider = decider
        self._tokens = tokens
        sampler, units = decider.sampler.tables, decider.units.tables
        self._settings = sampler.settings
        self._seeds = decider.seeds
        self._forbidden = _bits(sampler.forbidden)
        self._characters = units.characters
        self._slots = Slots(
            sampler.choices, units.rules, units.step, units.length, units.turn_open.view(torch.uint8), units.turn_ended.view(torch.uint8),
            sampler.history, sampler.drawn, sampler.entered.view(torch.uint8), decider.states,
        )  # fmt: skip
        script = decider.script
        self._script = None if script is None else Script(script.table, script.repeat, script.stagger)

    def decide(self, numbers: Tensor, hidden: Tensor, logits: Tensor, manner: Manner) -> Tensor:
        """As `Decider.decide`; `numbers` int64 [rows, FIELDS], `logits` of any float type, read as they are."""
        numbers, hidden, logits = numbers.contiguous(), hidden.contiguous(), logits.contiguous()
        if manner is Manner.WIDE:
            return self._in_parts(numbers, hidden, logits)
        step, seeds, slots, tokens = self._slots.step, self._seeds, self._slots, self._tokens
        marks = torch.empty(len(logits), len(self._forbidden), dtype=torch.int32, device=logits.device)
        remember(numbers, slots.history, slots.drawn, marks, tokens.speak)
        given = numbers, step, seeds, self._settings, slots.choices, self._forbidden, marks, tokens.turn_eos
        surveyed = survey(logits, *given)
        picks = shortlist(logits, surveyed, *given, tokens.chunk_eos)
        return settle(picks, numbers, hidden, self._script, self._characters, slots, tokens, self._decider.padding[0])

    def _in_parts(self, numbers: Tensor, hidden: Tensor, logits: Tensor) -> Tensor:
        rows, drafts = len(numbers), len(logits) - len(numbers)
        first, second = [], []
        for start in range(0, rows, WIDE_ROWS):
            stop = min(start + WIDE_ROWS, rows)
            lines = [slice(start, stop), slice(rows + start, rows + min(stop, drafts))] if start < drafts else [slice(start, stop)]
            states, scores = (torch.cat([each[line] for line in lines]) for each in (hidden, logits))
            found = self._decider.decide(numbers[start:stop], states, scores, Manner.WIDE)
            first.append(found[: stop - start])
            second.append(found[stop - start :])
        return torch.cat(first + second)


def _bits(flags: Tensor) -> Tensor:
    """int32 [words] of bool [n]: 32 a word, the lowest first, set behind the last."""
    padded = torch.cat((flags, flags.new_ones(-len(flags) % 32))).view(-1, 32).long()
    words = (padded << torch.arange(32, device=flags.device)).sum(1)
    return torch.where(words >= 2**31, words - 2**32, words).int()
