"""What becomes of a drawn token: the state machine of a unit, for all sessions at once. No host decision within a step."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from minicpmo45.tokens import Tokens

MOST_UNIT_TOKENS = 64
"""That rules may permit."""


class UnitRules(NamedTuple):
    """Bounds of a session's units."""

    most_tokens: int = 20
    """Of a unit, its terminator included: the last one permitted is `<|chunk_eos|>`."""
    most_characters: int = 28
    """A token with which the unit's text would reach this is refused, and the unit ends."""


class UnitTables(NamedTuple):
    """What is kept of units, by slot but for the last; for whoever judges in their place."""

    rules: Tensor
    """int64 [slots, 2], see UnitRules."""
    step: Tensor
    length: Tensor
    turn_open: Tensor
    turn_ended: Tensor
    characters: Tensor


class Verdict(NamedTuple):
    """Of each row, [rows]."""

    token: Tensor
    """int64: the token of this step. It is fed, unless the unit ended with it; then it rides with the next prefill."""
    ended: Tensor
    """bool."""


class Units:
    """Slot-indexed state: which token of a unit is next, how much text it has, whether a turn is open.

    `characters`: int64 [vocabulary], see `Vocabulary.characters`.
    """

    def __init__(self, tokens: Tokens, characters: Tensor, slots: int) -> None:
        device = characters.device
        self._tokens = tokens
        self._characters = characters
        self._rules = torch.zeros(slots, 2, dtype=torch.int64, device=device)
        self.step = torch.zeros(slots, dtype=torch.int64, device=device)
        self.length = torch.zeros(slots, dtype=torch.int64, device=device)
        self.turn_open = torch.zeros(slots, dtype=torch.bool, device=device)
        self._turn_ended = torch.zeros(slots, dtype=torch.bool, device=device)

    @property
    def tables(self) -> UnitTables:
        return UnitTables(self._rules, self.step, self.length, self.turn_open, self._turn_ended, self._characters)

    def tune(self, slot: int, rules: UnitRules) -> None:
        """The rules of a slot from its next token on."""
        self._rules[slot] = torch.tensor(rules)

    def begin(self, slots: Tensor, opening: Tensor, turn_open: Tensor) -> None:
        """Units begin in those `slots` where `opening`, bool [rows]; there `turn_open` says whether the model is in mid-turn."""
        self.step[slots] = self.step[slots].masked_fill(opening, 0)
        self.length[slots] = self.length[slots].masked_fill(opening, 0)
        self._turn_ended[slots] &= ~opening
        self.turn_open[slots] = torch.where(opening, turn_open, self.turn_open[slots])

    def draws(self, slots: Tensor) -> Tensor:
        """bool [rows]: the next token is a matter of the sampler. Otherwise it is decided, whatever is drawn."""
        return self.step[slots] < self._rules[slots, 0] - 1

    def advance(self, slots: Tensor, drawn: Tensor) -> Verdict:
        """Judges the drawn tokens, int64 [rows], of `slots`, each at most once.

        In order: `<|listen|>` within an open turn becomes `<|tts_bos|>`; the last token permitted is `<|chunk_eos|>`; behind `<|turn_eos|>`
        a unit ends, for a turn that ended does not begin again within it; so it does before its text is too long. Text and talker have the
        tokens from the second one on. `<|turn_eos|>` ends the turn, not the unit.
        """
        tokens = self._tokens
        step, is_open = self.step[slots], self.turn_open[slots]
        token = torch.where(is_open & (drawn == tokens.listen), tokens.tts_bos, drawn)
        token = torch.where(step >= self._rules[slots, 0] - 1, tokens.chunk_eos, token)
        ended = (token == tokens.listen) | (token == tokens.chunk_eos) | (token == tokens.chunk_tts_eos)
        length = self.length[slots] + torch.where(step > 0, self._characters[token], 0)
        refused = ~ended & (self._turn_ended[slots] | (length >= self._rules[slots, 1]))
        token = torch.where(refused, tokens.chunk_eos, token)
        ended = ended | refused
        closes = ~ended & (token == tokens.turn_eos)
        self.step[slots] = step + 1
        self.length[slots] = torch.where(ended, self.length[slots], length)
        self.turn_open[slots] = torch.where(ended, is_open, ~closes)
        self._turn_ended[slots] |= closes
        return Verdict(token, ended)
