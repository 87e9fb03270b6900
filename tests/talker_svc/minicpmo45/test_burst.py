"""Many codes in one step are the codes that come one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from parley_stage.v1 import stage_pb2
from torch import Tensor

from stage_kit import Label
from talker_svc.minicpmo45.engine import MiniCpmTalkerEngine
from talker_svc.minicpmo45.settings import MiniCpmTalkerSettings
from tests.talker_svc.minicpmo45.support.harness import Talk, engine, payload, run

ONE, TWO = Label(epoch=0, turn=1, response_id="t1"), Label(epoch=1, turn=2, response_id="t2")
Kind = tuple[int, bool]
"""Codes of a step, and whether the next one is launched before they are read."""
ONES: Kind = (1, False)
KINDS: tuple[Kind, ...] = ((4, False), (5, False), (26, False), (1, True), (5, True), (7, True))
TAIL = 62
END_NORM = 9.0
"""Of the end code's row in the head, to the others'."""


class Talkers:
    """One of each kind, made when it is asked for."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self._made: dict[Kind, MiniCpmTalkerEngine] = {}

    def __getitem__(self, kind: Kind) -> MiniCpmTalkerEngine:
        if kind not in self._made:
            limits = {"slots": 4, "positions": 256, "window_units": 3, "tail_codes": TAIL}
            self._made[kind] = engine(self._checkpoint, burst=kind[0], ahead=kind[1], **limits)
        return self._made[kind]


@pytest.fixture(scope="module")
def talkers(tiny_checkpoint: Path) -> Talkers:
    return Talkers(tiny_checkpoint)


@contextmanager
def _ending(talker: MiniCpmTalkerEngine) -> Iterator[None]:
    """The end code is drawn now and then."""
    head = talker._speaker._model._head
    before = head[-1].clone()
    head[-1] *= END_NORM * head[:-1].norm(dim=1).mean() / before.norm()
    yield
    head[-1] = before


@contextmanager
def _talks(talker: MiniCpmTalkerEngine, *names: str) -> Iterator[list[Talk]]:
    talks = [Talk(talker, name) for name in names]
    yield talks
    for talk in talks:
        talker.close(talk.slot)
    assert talker._pool.held == 0


def _say(talk: Talk, label: Label, *tokens: int, seed: int) -> None:
    for index, count in enumerate(tokens, 1):
        talk.say(label, payload(count, seed + index, turn_end=index == len(tokens)), last=index == len(tokens))


def _told(talk: Talk) -> list[tuple[Label, list[int], bool, int, int]]:
    """Everything that was sent."""
    return [
        (
            each.label,
            [] if each.payload is None else list(each.payload.codes.codes),
            each.last,
            0 if each.finish is None else each.finish.reason,
            0 if each.finish is None else each.finish.output_tokens,
        )
        for each in talk.outputs
    ]


PLANS: list[tuple[str, int, tuple[int, ...]]] = [
    ("a", 0, (5, 2, 3, 4)),
    ("b", 7, (1, 4)),
    ("c", 16, (3,)),
    ("d", 34, (2, 0, 2)),
    ("e", 150, (6,)),
]
"""Names, the code of the first one beside which each begins, text tokens of the units."""


def _company(talker: MiniCpmTalkerEngine) -> dict[str, list[Any]]:
    """What is told of sessions that come and go at any step; the last one takes a place that was left."""
    talks: dict[str, Talk] = {}
    told: dict[str, list[Any]] = {}
    for step in range(400):
        for name, starts, tokens in PLANS:
            if step == starts // talker._speaker.burst:
                talks[name] = Talk(talker, name)
                _say(talks[name], ONE, *tokens, seed=ord(name))
        ready = [talk.slot for talk in talks.values() if talker.ready(talk.slot) is not None]
        if ready:
            talker.step(ready)
        for name in [name for name, talk in talks.items() if talk.ends(ONE)]:
            told[name] = _told(talks[name])
            talker.close(talks.pop(name).slot)
    assert not talks and talker._pool.held == 0
    return told


@cache
def _one_by_one(story: Callable[..., Any], talkers: Talkers, *given: Any) -> Any:
    """What is told where codes come one by one: the same beside every kind."""
    return story(talkers[ONES], *given)


def _ending_company(talker: MiniCpmTalkerEngine) -> dict[str, list[Any]]:
    with _ending(talker):
        return _company(talker)


@pytest.mark.behaviour("N45")
@pytest.mark.parametrize("kind", KINDS)
def test_sessions_that_come_and_go_draw_what_they_draw_one_by_one(talkers: Talkers, kind: Kind) -> None:
    expected = _one_by_one(_ending_company, talkers)
    assert _ending_company(talkers[kind]) == expected
    lengths = {name: [len(codes) for _, codes, *_ in told] for name, told in expected.items()}
    # first units that end early, tails of more than a second, whole units, one that says nothing
    assert lengths == {"a": [4, 25, 25, 1], "b": [4, 0], "c": [25, 15], "d": [22, 25, 14], "e": [12]}


def _cancelled(talker: MiniCpmTalkerEngine) -> list[Any]:
    with _talks(talker, "x", "y") as (talk, other):
        _say(talk, ONE, 5, 2, 3, seed=3)
        _say(other, ONE, 5, 2, 3, seed=4)
        run(talker, talk, other, steps=26 // talker._speaker.burst)
        before = len(talk.outputs)
        talk.cancel()
        assert talk.slot.state.table.length == 0
        _say(talk, TWO, 3, 1, seed=5)
        run(talker, talk, other)
        return [_told(talk)[before:], _told(other)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancel_between_bursts_leaves_nothing(talkers: Talkers, kind: Kind) -> None:
    assert _cancelled(talkers[kind]) == _one_by_one(_cancelled, talkers)


def _held(talker: MiniCpmTalkerEngine) -> list[Any]:
    with _ending(talker), _talks(talker, *(f"short {name}" for name in range(4))) as talks:
        for seed, talk in enumerate(talks):
            talk.say(ONE, payload(3, seed))
        run(talker, *talks)
        tables = [talk.slot.state.table for talk in talks]
        return [(table.position, list(table.stops), talk.codes(ONE)) for table, talk in zip(tables, talks, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
def test_places_beyond_the_end_are_given_back(talkers: Talkers, kind: Kind) -> None:
    expected = _one_by_one(_held, talkers)
    assert _held(talkers[kind]) == expected
    assert any(position < 4 + 24 for position, *_ in expected)


@contextmanager
def _ill(talker: MiniCpmTalkerEngine, draw: int) -> Iterator[None]:
    """The logits of the first row's n-th code, counted from 1, are NaN."""
    model = talker._speaker._model
    real, calls = model.continued, [1]

    def spoiled(*arguments: Any) -> Tensor:
        out = real(*arguments)
        calls[0] += 1
        if calls[0] == draw:
            out[0, 7] = torch.nan
        return out

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "continued", spoiled)
        yield


def _failed(talker: MiniCpmTalkerEngine, draw: int) -> list[Any]:
    with _talks(talker, "ill", "well") as (talk, other), _ill(talker, draw):
        talk.say(ONE, payload(2, 1, turn_end=True), last=True)
        _say(other, ONE, 4, 4, seed=2)
        run(talker, talk, other)
        told = [_told(talk), _told(other)]
        assert talk.ends(ONE)[0].reason == stage_pb2.Finish.REASON_FAILED
        _say(talk, TWO, 2, seed=9)
        run(talker, talk)
        return [*told, _told(talk)]


@pytest.mark.behaviour("S2")
@pytest.mark.parametrize(
    ("kind", "draw"),
    [((4, False), 2), ((5, False), 9), ((5, False), 33), ((26, False), 33), ((5, True), 9), ((5, True), 33), ((7, True), 8)],
)
def test_logits_that_are_not_finite_inside_a_burst_fail_one_session(talkers: Talkers, kind: Kind, draw: int) -> None:
    assert _failed(talkers[kind], draw) == _one_by_one(_failed, talkers, draw)


def _undisturbed(talker: MiniCpmTalkerEngine) -> list[Any]:
    with _talks(talker, "again") as (talk,):
        _say(talk, ONE, 4, 3, seed=6)
        run(talker, talk)
        return _told(talk)


@pytest.mark.parametrize("kind", KINDS)
def test_a_burst_that_raises_changes_nothing(talkers: Talkers, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, talker = _one_by_one(_undisturbed, talkers), talkers[kind]
    decoder = talker._speaker._model.decoder
    real, calls = decoder.forward, [0]

    def sometimes(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] in (3, 9, 15):
            raise RuntimeError("out of memory")
        return real(*arguments)

    monkeypatch.setattr(decoder, "forward", sometimes)
    failures = 0
    with _talks(talker, "again") as (talk,):
        _say(talk, ONE, 4, 3, seed=6)
        table, state = talk.slot.state.table, talker._sampler._state[talk.slot.state.row]
        while talker.ready(talk.slot) is not None:
            position, stops, before = table.position, list(table.stops), state.clone()
            try:
                talker.step([talk.slot])
            except RuntimeError:
                failures += 1
                assert (table.position, table.stops) == (position, stops) and torch.equal(state, before)
        assert _told(talk) == expected and failures == 3


def test_the_first_unit_of_a_turn_stays_the_most_urgent(talkers: Talkers) -> None:
    talker = talkers[5, False]
    with _talks(talker, "old", "new") as (old, new):
        _say(old, ONE, 4, 3, 2, seed=0)
        run(talker, old, steps=8)
        new.say(ONE, payload(2, 1))
        assert talker.ready(new.slot) == 0.0 < talker.ready(old.slot)  # type: ignore[operator]


def test_a_unit_takes_five_steps_of_five(talkers: Talkers) -> None:
    talker = talkers[5, False]
    with _talks(talker, "even") as (talk,):
        talk.say(ONE, payload(4, 1))
        talk.say(ONE, payload(4, 2))
        first = run(talker, talk)
        assert [len(codes) for codes in talk.codes(ONE)][1] == 25 and first <= 10


def test_how_many_codes_a_step_draws() -> None:
    def settings(**given: Any) -> MiniCpmTalkerSettings:
        return MiniCpmTalkerSettings(checkpoint=Path(), **given)

    assert settings().codes_per_step == 1 and settings(device="cuda").codes_per_step == 5
    assert settings(burst=26).codes_per_step == settings(device="cuda", burst=26).codes_per_step == 26
    for wrong in (0, 27):
        with pytest.raises(ValueError, match="burst"):
            settings(burst=wrong)
