"""Rules of drawing: penalty, end code, independence of rows."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from torch import Tensor

from talker_svc.minicpmo45.sampler import NO_RULE, NOT_FINITE, CodeSampler, Manner, UnitRule
from tests.talker_svc.minicpmo45.support import begin

CODES, END = 30, 29


def _sampler(rows: int = 1, **manner: float) -> CodeSampler:
    sampler = CodeSampler(rows, codes=CODES, min_piece=5)
    for row in range(rows):
        sampler.tune(row, Manner(seed=row + 1, **manner))
    return sampler


def _logits(seed: int, rows: int = 1) -> Tensor:
    return torch.randn(rows, CODES, generator=torch.Generator().manual_seed(seed)) * 3


def _expected(logits: list[float], history: list[int], draws: list[float], *, may_end: bool) -> int:
    """The rule of reference/minicpmo45.md 2.3, one number after the other."""
    counts = Counter(history[-16:])
    scores = []
    for code, logit in enumerate(logits):
        score, factor = logit / 0.8, 1.05 ** counts[code]
        scores.append(score * factor if score < 0 else score / factor)
    if not may_end:
        scores[END] = -math.inf
    return max(range(CODES), key=lambda code: scores[code] - math.log(draws[code]))


@pytest.mark.parametrize(
    ("floor", "ending", "mask"),
    [
        (25, False, lambda step: step < 25),
        (0, False, lambda step: False),
        (0, True, lambda step: step > 25 and 0 < step % 25 < 5),
    ],
    ids=["middle", "start", "end"],
)
def test_draws_follow_the_rule(floor: int, ending: bool, mask) -> None:  # type: ignore[no-untyped-def]
    sampler = _sampler()
    begin(sampler, [0], [UnitRule(7, floor, ending)])
    row = torch.tensor([0])
    history: list[int] = []
    ended = 0
    for step in range(104):
        logits = _logits(step)
        logits[0, END] += 6
        draws = torch.empty(1, CODES).exponential_(generator=torch.Generator().manual_seed(900 + step))
        code = int(sampler.sample(row, logits, draws))
        assert code == _expected(logits[0].tolist(), history, draws[0].tolist(), may_end=not mask(step)), step
        history.append(code)
        if code == END:
            # the penalty goes on over an end that the engine would stop at
            ended, sampler._state[0, 2] = ended + 1, 0
    assert ended


def test_a_new_unit_forgets_what_was_repeated() -> None:
    sampler = _sampler(repetition_penalty=2.0, greedy=True)
    row, logits = torch.tensor([0]), torch.full((1, CODES), 1.0)
    logits[0, 3], logits[0, 8] = 2.0, 1.5
    begin(sampler, [0], [UnitRule(0, 25, False)])
    assert [int(sampler.sample(row, logits)) for _ in range(2)] == [3, 8]
    begin(sampler, [0], [UnitRule(1, 25, False)])
    assert int(sampler.sample(row, logits)) == 3


def test_rows_of_a_batch_draw_as_they_do_alone() -> None:
    together, alone = _sampler(3), _sampler(3)
    rules = [UnitRule(5, 0, True), UnitRule(0, 25, False), UnitRule(1 << 33, 0, False)]
    begin(together, [0, 1, 2], rules)
    rows = torch.tensor([2, 0, 1])
    for step in range(30):
        logits = _logits(step, rows=3)
        codes = together.sample(rows, logits)
        for index, row in enumerate(rows.tolist()):
            if step == 0:
                begin(alone, [row], [rules[row]])
            assert int(alone.sample(rows[index : index + 1], logits[index : index + 1])) == int(codes[index])


def test_manner_is_a_row_s_own() -> None:
    sampler = CodeSampler(3, codes=CODES, min_piece=5)
    sampler.tune(0, Manner(greedy=True))
    sampler.tune(1, Manner(temperature=0.05, seed=4))
    sampler.tune(2, Manner(temperature=2.0, seed=4))
    begin(sampler, [0, 1, 2], [UnitRule(0, 25, False)] * 3)
    logits = _logits(1).expand(3, CODES).contiguous()
    logits[:, END] = -9
    drawn = {0: set(), 1: set(), 2: set()}  # type: dict[int, set[int]]
    for unit in range(60):
        begin(sampler, [0, 1, 2], [UnitRule(unit, 25, False)] * 3)
        for row, code in enumerate(sampler.sample(torch.arange(3), logits).tolist()):
            drawn[row].add(code)
    assert drawn[0] == {int(logits[0].argmax())} and len(drawn[1]) <= 3 < len(drawn[2])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_bad_logit_is_told_and_touches_no_other_row(value: float) -> None:
    sampler, beside = _sampler(2), _sampler(2)
    for each in (sampler, beside):
        begin(each, [0, 1], [UnitRule(0, 25, False)] * 2)
    logits = _logits(3, rows=2)
    good = beside.sample(torch.tensor([0, 1]), logits).tolist()
    logits[1, 4] = value
    assert sampler.sample(torch.tensor([0, 1]), logits).tolist() == [good[0], NOT_FINITE]


@pytest.mark.parametrize("value", [1e38, -1e38])
def test_a_logit_that_the_temperature_makes_infinite_is_bad_where_it_would_win(value: float) -> None:
    sampler, beside = _sampler(2), _sampler(2)
    for each in (sampler, beside):
        each.tune(1, Manner(temperature=0.05))
        begin(each, [0, 1], [UnitRule(0, 25, False)] * 2)
    logits = _logits(3, rows=2)
    logits[1, 4] = -9
    good = beside.sample(torch.tensor([0, 1]), logits).tolist()
    logits[1, 4] = value
    assert sampler.sample(torch.tensor([0, 1]), logits).tolist() == [good[0], NOT_FINITE if value > 0 else good[1]]


@pytest.mark.parametrize("ending", [END, NOT_FINITE])
def test_a_row_that_stopped_stays_as_it_is_until_its_next_unit(ending: int) -> None:
    sampler, beside = _sampler(2), _sampler(2)
    for each in (sampler, beside):
        begin(each, [0, 1], [UnitRule(0, 0, False)] * 2)
    rows, going = torch.tensor([0, 1]), torch.tensor([1])
    logits = _logits(1, rows=2)
    logits[0, END] = 1e9 if ending == END else math.nan
    beside.sample(rows, logits)
    assert int(sampler.sample(rows, logits)[0]) == ending
    stopped = sampler._state[0].clone()
    for step in range(20):
        logits = _logits(2 + step, rows=2)
        logits[:, END] = -1e9
        codes = sampler.sample(rows, logits).tolist()
        assert codes == [ending, int(beside.sample(going, logits[1:]))]
        assert torch.equal(sampler._state[0], stopped)
    sampler.begin(rows, torch.tensor([UnitRule(1, 25, False).fields, NO_RULE]))
    assert int(sampler.sample(rows, logits)[0]) not in (END, NOT_FINITE) and int(sampler.last[0]) >= 0


def test_what_was_drawn_since_can_be_taken_back() -> None:
    sampler, row = _sampler(), torch.tensor([0])
    begin(sampler, [0], [UnitRule(0, 25, False)])
    sampler.sample(row, _logits(1))
    sampler.keep()
    drawn = [int(sampler.sample(row, _logits(step))) for step in range(2, 12)]
    sampler.restore()
    assert [int(sampler.sample(row, _logits(step))) for step in range(2, 12)] == drawn
