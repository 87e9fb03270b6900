"""One kernel draws what plain torch draws, and leaves the state that it leaves."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from talker_svc.minicpmo45.sampler import NO_RULE, NOT_FINITE, CodeSampler, Manner, UnitRule

pytest.importorskip("triton")

from talker_svc.minicpmo45.fused_sampler import FusedCodeSampler
from tests.support.interpreter import mend_interpreter

mend_interpreter()

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CODES, HIDDEN = 70, 24
END, SPARE = CODES - 1, 4
MANNERS = (Manner(seed=3), Manner(greedy=True, seed=4), Manner(0.5, 1.4, seed=(1 << 63) - 1), Manner(2.0, 2.0, seed=1 << 40), Manner())
RULES = (UnitRule(7, 0, True), UnitRule(1 << 33, 25, False), UnitRule((5 << 32) + 3, 0, False), UnitRule(2, 0, True))


def _both(codes: int = CODES) -> tuple[CodeSampler, CodeSampler]:
    made: tuple[CodeSampler, CodeSampler] = tuple(
        kind(SPARE + 1, codes=codes, min_piece=5, device=DEVICE) for kind in (CodeSampler, FusedCodeSampler)
    )  # type: ignore[assignment]
    for sampler in made:
        for row, manner in enumerate(MANNERS):
            sampler.tune(row, manner)
        rules = torch.tensor([rule.fields for rule in RULES], device=DEVICE)
        sampler.begin(torch.arange(SPARE, device=DEVICE), rules)
    return made


def _logits(seed: int, rows: int, codes: int = CODES) -> Tensor:
    return (torch.randn(rows, codes, generator=torch.Generator().manual_seed(seed)) * 3).to(DEVICE)


@pytest.mark.behaviour("N45")
def test_codes_states_and_next_inputs_are_those_of_plain_torch() -> None:
    plain, fused = _both()
    table = torch.randn(CODES, HIDDEN, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    drawn: list[list[int]] = []
    for step in range(35):
        # in another order each time, padding behind them
        rows = torch.tensor([*torch.randperm(SPARE, generator=torch.Generator().manual_seed(step)).tolist(), SPARE], device=DEVICE)
        logits = _logits(step, len(rows))
        logits[:, :6] += 3
        logits[:, END] += (step % 7 == 6) * 9.0
        expected, fed = plain.sample_next(rows, logits, table)
        codes, embeddings = fused.sample_next(rows, logits, table)
        assert torch.equal(codes, expected) and torch.equal(embeddings, fed), step
        assert torch.equal(fused._state, plain._state), step
        drawn.append(codes[rows.argsort()][:SPARE].tolist())
        if step in (10, 20):
            # those that ended begin anew, the others go on
            stopped = plain._state[:SPARE, 2].tolist()
            rules = torch.tensor([RULES[row].fields if stopped[row] else NO_RULE for row in range(SPARE)], device=DEVICE)
            for sampler in (plain, fused):
                sampler.begin(torch.arange(SPARE, device=DEVICE), rules)
    ended = [row for row in range(SPARE) if any(codes[row] == END for codes in drawn)]
    assert len(ended) >= 2 and len({codes[0] for codes in drawn}) > 5


def test_the_released_number_of_codes() -> None:
    plain, fused = _both(6562)
    rows = torch.tensor([2, 0, 3], dtype=torch.int32, device=DEVICE)
    for step in range(3):
        logits = _logits(step, 3, 6562)
        assert torch.equal(fused.sample(rows, logits), plain.sample(rows.long(), logits))
    assert torch.equal(fused._state, plain._state)


def test_of_equals_the_first_wins() -> None:
    plain, fused = _both()
    logits = torch.full((1, CODES), 0.5, device=DEVICE)
    logits[0, 40] = logits[0, 11] = 2.0
    row = torch.tensor([1], device=DEVICE)
    drawn = [(int(fused.sample(row, logits)), int(plain.sample(row, logits))) for _ in range(4)]
    # the penalty lets them take turns
    assert drawn == [(11, 11), (40, 40), (11, 11), (40, 40)]


@pytest.mark.behaviour("S2")
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_bad_logit_is_told_once_and_for_all(value: float) -> None:
    plain, fused = _both()
    rows = torch.arange(3, device=DEVICE)
    logits = _logits(5, 3)
    logits[1, END if math.isnan(value) else 3] = value
    for step in range(3):
        codes = fused.sample(rows, logits if not step else _logits(step, 3))
        assert torch.equal(codes, plain.sample(rows, logits if not step else _logits(step, 3)))
        assert int(codes[1]) == NOT_FINITE and (codes[[0, 2]] >= 0).all()
    assert torch.equal(fused._state, plain._state)


@pytest.mark.parametrize("value", [1.0, -1.0])
def test_a_logit_that_the_temperature_makes_infinite_is_bad_where_it_would_win(value: float) -> None:
    plain, fused = _both()
    rows, table = torch.tensor([2, 0], device=DEVICE), torch.zeros(CODES, HIDDEN, device=DEVICE)
    logits = _logits(6, 2)
    logits[0, 9] = 3e38 * value
    codes, _ = fused.sample_next(rows, logits, table)
    assert torch.equal(codes, plain.sample(rows, logits)) and torch.equal(fused._state, plain._state)
    assert (int(codes[0]) == NOT_FINITE) == (value > 0) and int(codes[1]) >= 0


def test_what_lies_behind_the_logits_is_not_read() -> None:
    plain, fused = _both()
    rows = torch.tensor([3], device=DEVICE)
    held = torch.full((3, CODES), torch.nan, device=DEVICE)
    held[1] = _logits(8, 1)[0]
    assert torch.equal(fused.sample(rows, held[1:2]), plain.sample(rows, held[1:2]))
