"""What happens to sessions whose codes are on their way: cancels, leaves and joins, failures, thoughts that come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stage_kit import Label, StepFailed
from talker_svc.minicpmo45.engine import MiniCpmTalkerEngine
from tests.talker_svc.minicpmo45.support.harness import Talk, engine, payload, run

ONE, TWO = Label(epoch=0, turn=1, response_id="t1"), Label(epoch=1, turn=2, response_id="t2")


@pytest.fixture(scope="module")
def talker(tiny_checkpoint: Path) -> MiniCpmTalkerEngine:
    return engine(tiny_checkpoint, slots=2, positions=256, burst=5, ahead=True, tail_codes=30)


def _alone(talker: MiniCpmTalkerEngine, name: str, label: Label, seed: int) -> list[list[int]]:
    talk = Talk(talker, name)
    talk.say(label, payload(3, seed), last=True)
    run(talker, talk)
    codes = talk.codes(label)
    talker.close(talk.slot)
    assert talker._pool.held == 0
    return codes


@pytest.mark.behaviour("N45")
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_a_cancel_drops_what_is_on_its_way(talker: MiniCpmTalkerEngine, steps: int) -> None:
    talk, other = Talk(talker, "x"), Talk(talker, "y")
    for each, seed in ((talk, 3), (other, 4)):
        each.say(ONE, payload(3, seed), last=True)
    assert run(talker, talk, other, steps=steps) == steps and talker._flying is not None
    before = len(talk.outputs)
    talk.cancel()
    assert talk.slot.state.table.length == 0
    talk.say(TWO, payload(3, 5), last=True)
    run(talker, talk, other)
    assert talk.codes(TWO) == _company(talker, talk, other, TWO, 5) and len(talk.codes(ONE)) <= before
    assert other.codes(ONE) == _alone(talker, "y", ONE, 4)


def _company(talker: MiniCpmTalkerEngine, talk: Talk, other: Talk, label: Label, seed: int) -> list[list[int]]:
    """What the session draws alone, once both are gone."""
    for each in (talk, other):
        talker.close(each.slot)
    return _alone(talker, talk.slot.session_id, label, seed)


def test_who_takes_the_place_of_one_that_left_is_not_disturbed(talker: MiniCpmTalkerEngine) -> None:
    left, other = Talk(talker, "left"), Talk(talker, "other")
    for each, seed in ((left, 1), (other, 2)):
        each.say(ONE, payload(3, seed), last=True)
    run(talker, left, other, steps=2)
    talker.close(left.slot)
    new = Talk(talker, "new")
    assert new.slot.state.row == left.slot.state.row
    new.say(ONE, payload(3, 9), last=True)
    run(talker, new, other)
    assert left.outputs == []
    for each in (new, other):
        talker.close(each.slot)
    assert (new.codes(ONE), other.codes(ONE)) == (_alone(talker, "new", ONE, 9), _alone(talker, "other", ONE, 2))


def test_a_thought_that_comes_meanwhile_is_the_next_unit(talker: MiniCpmTalkerEngine) -> None:
    expected = None
    for steps in (0, 1, 3):
        talk = Talk(talker, "two units")
        talk.say(ONE, payload(3, 1))
        if not steps:
            talk.say(ONE, payload(2, 2, turn_end=True), last=True)
        run(talker, talk, steps=steps or 100)
        if steps:
            talk.say(ONE, payload(2, 2, turn_end=True), last=True)
            run(talker, talk)
        told = talk.codes(ONE), [finish.output_tokens for finish in talk.ends(ONE)]
        talker.close(talk.slot)
        assert expected in (None, told)
        expected = told


def test_codes_that_cannot_be_sent_fail_one_session(talker: MiniCpmTalkerEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    talk, other = Talk(talker, "ill"), Talk(talker, "well")
    for each, seed in ((talk, 1), (other, 2)):
        each.say(ONE, payload(3, seed), last=True)
    run(talker, talk, other, steps=2)
    real = talker._take

    def failing(slot: Any, *arguments: Any) -> None:
        if slot is talk.slot:
            raise RuntimeError("no")
        real(slot, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(talker, "_take", failing)
        with pytest.raises(StepFailed) as failure:
            talker.step([talk.slot, other.slot])
    assert failure.value.slot is talk.slot and talker.ready(talk.slot) is None
    run(talker, talk, other)
    for each in (talk, other):
        talker.close(each.slot)
    assert other.codes(ONE) == _alone(talker, "well", ONE, 2)


@pytest.mark.behaviour("S2")
def test_all_whose_codes_cannot_be_sent_are_told(talker: MiniCpmTalkerEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """One failure can be raised; who is not named by it would wait for ever."""
    talks = [Talk(talker, name) for name in ("one", "two")]
    for seed, talk in enumerate(talks):
        talk.say(ONE, payload(3, seed), last=True)
    run(talker, *talks, steps=2)

    def failing(*_: Any) -> None:
        raise RuntimeError("no")

    with monkeypatch.context() as patch:
        patch.setattr(talker, "_take", failing)
        with pytest.raises(StepFailed):
            talker.step([talk.slot for talk in talks])
    run(talker, *talks)
    for talk in talks:
        (end,) = talk.ends(ONE)
        assert end.HasField("error") and not talk.codes(ONE)
        talker.close(talk.slot)
    assert talker._pool.held == 0


def test_an_open_that_fails_takes_nothing(talker: MiniCpmTalkerEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(talker._sampler, "tune", failing)
        for _ in range(3):
            with pytest.raises(RuntimeError):
                Talk(talker, "refused")
    assert sorted(talker._rows) == [0, 1] and talker._pool.free == talker._pool.pages - 1
    assert _alone(talker, "well", ONE, 2)
