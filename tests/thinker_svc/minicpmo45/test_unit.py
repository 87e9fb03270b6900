"""The state machine of a unit, batched, against one session's rules in plain Python."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from minicpmo45.tokens import Tokens
from tests.thinker_svc.minicpmo45.thinking import vocabulary_of
from thinker_svc.minicpmo45.unit import UnitRules, Units

TEXT = (10, 11, 12)
CHARACTERS = {10: 1, 11: 3, 12: 0}


class SlowUnit:
    """One session, token by token."""

    def __init__(self, tokens: Tokens, rules: UnitRules) -> None:
        self.tokens, self.rules = tokens, rules
        self.open = False
        self.begin()

    def begin(self) -> None:
        self.step = self.length = 0
        self.ended_turn = False

    def take(self, drawn: int) -> tuple[int, bool]:
        tokens, step = self.tokens, self.step
        self.step += 1
        if step == self.rules.most_tokens - 1:
            return tokens.chunk_eos, True
        if drawn == tokens.listen and self.open:
            drawn = tokens.tts_bos
        if drawn in tokens.unit_terminators:
            return drawn, True
        if self.ended_turn:
            return tokens.chunk_eos, True
        grown = self.length + (CHARACTERS.get(drawn, 0) if step else 0)
        if grown >= self.rules.most_characters:
            return tokens.chunk_eos, True
        self.length, self.open = grown, drawn != tokens.turn_eos
        self.ended_turn = not self.open
        return drawn, False


def _units(tokens: Tokens, slots: int) -> Units:
    characters = torch.zeros(151_748, dtype=torch.int64)
    for token, count in CHARACTERS.items():
        characters[token] = count
    return Units(tokens, characters, slots)


@pytest.mark.behaviour("N44", "S1")
def test_many_sessions_at_once_are_each_alone(tiny_checkpoint: Path) -> None:
    tokens, draw = vocabulary_of(tiny_checkpoint).tokens, random.Random(5)
    count = 8
    units, rules = _units(tokens, count), [UnitRules(draw.choice([2, 4, 20]), draw.choice([4, 28])) for _ in range(count)]
    alone = [SlowUnit(tokens, rule) for rule in rules]
    for slot, rule in enumerate(rules):
        units.tune(slot, rule)
    opening = dict.fromkeys(range(count), True)
    choices = [*TEXT, tokens.speak, tokens.listen, tokens.turn_eos, tokens.chunk_eos, tokens.chunk_tts_eos, tokens.tts_bos]
    seen = set()
    for _ in range(400):
        chosen = draw.sample(range(count), draw.randint(1, count))
        slots = torch.tensor(chosen)
        is_open = torch.tensor([alone[slot].open for slot in chosen])
        units.begin(slots, torch.tensor([opening[slot] for slot in chosen]), is_open)
        for slot in chosen:
            if opening[slot]:
                alone[slot].begin()
        assert units.draws(slots).tolist() == [alone[slot].step < rules[slot].most_tokens - 1 for slot in chosen]
        drawn = [draw.choice(choices) for _ in chosen]
        verdict = units.advance(slots, torch.tensor(drawn))
        for row, slot in enumerate(chosen):
            expected = alone[slot].take(drawn[row])
            assert (int(verdict.token[row]), bool(verdict.ended[row])) == expected
            assert bool(units.turn_open[slot]) == alone[slot].open
            opening[slot] = expected[1]
            seen.add((drawn[row], expected[0]))
    assert (tokens.listen, tokens.tts_bos) in seen and (11, tokens.chunk_eos) in seen


def _feed(units: Units, drawn: list[int], *, turn_open: bool = False) -> list[tuple[int, bool]]:
    slot, found = torch.tensor([0]), []
    for index, token in enumerate(drawn):
        units.begin(slot, torch.tensor([index == 0]), torch.tensor([turn_open]))
        verdict = units.advance(slot, torch.tensor([token]))
        found.append((int(verdict.token), bool(verdict.ended)))
    return found


@pytest.mark.behaviour("N44")
def test_the_bounds_of_a_unit(tiny_checkpoint: Path) -> None:
    tokens = vocabulary_of(tiny_checkpoint).tokens
    units = _units(tokens, 1)
    units.tune(0, UnitRules(20, 28))
    found = _feed(units, [tokens.speak, *[10] * 19])
    assert found[-2] == (10, False) and found[-1] == (tokens.chunk_eos, True), "19 free tokens"
    found = _feed(units, [tokens.speak, *[11] * 9, 10])
    assert found[9] == (11, False) and found[10] == (tokens.chunk_eos, True), "27 characters, and not the 28th"
    assert _feed(units, [11, *[11] * 9])[-1] == (11, False), "the first token is no text"
    assert _feed(units, [tokens.listen]) == [(tokens.listen, True)]
    assert _feed(units, [tokens.listen], turn_open=True) == [(tokens.tts_bos, False)]
    assert _feed(units, [tokens.speak, tokens.turn_eos, tokens.listen])[-1] == (tokens.listen, True)
    assert _feed(units, [tokens.speak, tokens.turn_eos, tokens.speak])[-1] == (tokens.chunk_eos, True)
