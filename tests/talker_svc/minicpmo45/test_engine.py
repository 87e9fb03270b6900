"""The engine through the kit's own slots, on a tiny random checkpoint."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from parley_stage.v1 import stage_pb2
from pydantic import ValidationError

from stage_kit import InvalidConfig, Label
from talker_svc.minicpmo45.engine import MiniCpmTalkerEngine
from talker_svc.minicpmo45.settings import MiniCpmTalkerSettings
from tests.talker_svc.minicpmo45.support.harness import LLM_DIM, Talk, engine, payload, run
from torch_kit.pages import PoolExhausted

ONE, TWO = Label(epoch=0, turn=1, response_id="t1"), Label(epoch=0, turn=2, response_id="t2")
NEXT = Label(epoch=1, turn=3, response_id="t3")
BOUND = 30


@pytest.fixture(scope="module")
def talker(tiny_checkpoint: Path) -> MiniCpmTalkerEngine:
    """Turns end at 30 codes, for random weights rarely draw the end."""
    return engine(tiny_checkpoint, slots=4, positions=256, window_units=3, tail_codes=BOUND)


def _turn(talk: Talk, label: Label, *tokens: int, seed: int = 0) -> None:
    for index, count in enumerate(tokens, 1):
        talk.say(label, payload(count, seed + index, turn_end=index == len(tokens)), last=index == len(tokens))


_known: dict[tuple[Any, ...], list[list[int]]] = {}


def _alone(talker: MiniCpmTalkerEngine, name: str, label: Label, *tokens: int, seed: int = 0) -> list[list[int]]:
    """What the session says when nothing else happens."""
    key = (name, label, tokens, seed)
    if key not in _known:
        talk = Talk(talker, name)
        _turn(talk, label, *tokens, seed=seed)
        run(talker, talk)
        talker.close(talk.slot)
        _known[key] = talk.codes(label)
    return _known[key]


def test_a_turn_is_spoken_unit_by_unit(talker: MiniCpmTalkerEngine) -> None:
    talk = Talk(talker, "alone")
    _turn(talk, ONE, 5, 0, 3)
    assert run(talker, talk) == 25 + 25 + BOUND
    assert [len(codes) for codes in talk.codes(ONE)] == [25, 25, 25, 5]
    assert [output.last for output in talk.outputs] == [False, False, False, True]
    (finish,) = talk.ends(ONE)
    assert (finish.reason, finish.input_tokens, finish.output_tokens) == (stage_pb2.Finish.REASON_LENGTH, 8, 80)
    assert all(output.payload.codes.rate_hz == 25 for output in talk.outputs if output.payload is not None)
    assert talk.slot.state.table.length == 0 and not talk.slot.state.turns
    talker.close(talk.slot)
    assert talker._pool.held == 0


@pytest.mark.behaviour("S1")
def test_sessions_join_and_leave_at_any_step_and_never_mix(talker: MiniCpmTalkerEngine) -> None:
    plans: list[tuple[str, int, tuple[int, ...]]] = [("a", 0, (5, 2, 3)), ("b", 7, (1, 4)), ("c", 31, (3,)), ("d", 40, (2, 2))]
    expected = {name: _alone(talker, name, ONE, *tokens, seed=ord(name)) for name, _, tokens in plans}
    assert len({tuple(codes[0]) for codes in expected.values()}) == 4
    talks: dict[str, Talk] = {}
    for step in range(200):
        for name, starts, tokens in plans:
            if step == starts:
                talks[name] = Talk(talker, name)
                _turn(talks[name], ONE, *tokens, seed=ord(name))
        ready = [talk.slot for talk in talks.values() if talker.ready(talk.slot) is not None]
        if ready:
            talker.step(ready)
    for name, talk in talks.items():
        assert talk.codes(ONE) == expected[name]
        talker.close(talk.slot)
    assert talker._pool.held == 0


def test_units_that_come_late_give_the_same_codes(talker: MiniCpmTalkerEngine) -> None:
    expected = _alone(talker, "late", ONE, 4, 3)
    talk = Talk(talker, "late")
    talk.say(ONE, payload(4, 1))
    run(talker, talk)
    assert talk.codes(ONE) == expected[:1] and talker.ready(talk.slot) is None
    talk.say(ONE, payload(3, 2, turn_end=True), last=True)
    run(talker, talk)
    assert talk.codes(ONE) == expected
    talker.close(talk.slot)


def test_turns_of_a_session_follow_each_other_from_a_clean_start(talker: MiniCpmTalkerEngine) -> None:
    expected = _alone(talker, "both", TWO, 2, 2)
    talk = Talk(talker, "both")
    _turn(talk, ONE, 5, 1)
    _turn(talk, TWO, 2, 2)
    run(talker, talk)
    assert talk.codes(TWO) == expected
    order = [output.label for output in talk.outputs]
    assert order == sorted(order, key=lambda label: label.turn) and len(talk.ends(ONE)) == len(talk.ends(TWO)) == 1
    talker.close(talk.slot)


def test_a_turn_ends_when_nothing_more_is_to_come(talker: MiniCpmTalkerEngine) -> None:
    talk = Talk(talker, "bare")
    talk.say(ONE, payload(4, 1))
    run(talker, talk)
    talk.say(ONE, None, last=True)
    run(talker, talk)
    assert [(output.payload is None, output.last) for output in talk.outputs] == [(False, False), (True, True)]
    assert talk.ends(ONE)[0].reason == stage_pb2.Finish.REASON_STOP
    talk.say(TWO, payload(4, 1))
    _turn(talk, Label(0, 3, "t3"), 2)
    run(talker, talk)
    assert len(talk.ends(TWO)) == 1 and len(talk.ends(Label(0, 3, "t3"))) == 1
    talker.close(talk.slot)


def test_a_cancel_drops_the_turn_at_once(talker: MiniCpmTalkerEngine) -> None:
    expected = _alone(talker, "barge", NEXT, 3, 1)
    talk, other = Talk(talker, "barge"), Talk(talker, "a")
    _turn(talk, ONE, 5, 2)
    _turn(other, ONE, 5, 2, 3, seed=ord("a"))
    run(talker, talk, other, steps=33)
    talk.cancel()
    assert talk.slot.state.table.length == 0 and talker.ready(talk.slot) is None
    before = len(talk.outputs)
    _turn(talk, NEXT, 3, 1)
    run(talker, talk, other)
    assert talk.codes(NEXT) == expected and all(output.label == NEXT for output in talk.outputs[before:])
    assert other.codes(ONE) == _alone(talker, "a", ONE, 5, 2, 3, seed=ord("a"))
    for each in (talk, other):
        talker.close(each.slot)


def test_a_turn_that_outgrows_its_positions_goes_on(talker: MiniCpmTalkerEngine) -> None:
    talk = Talk(talker, "long")
    _turn(talk, ONE, *[4] * 14)
    held = []
    while talker.ready(talk.slot) is not None:
        talker.step([talk.slot])
        held.append(talk.slot.state.table.window_length)
    assert [len(codes) for codes in talk.codes(ONE)] == [25] * 14 + [5]
    assert max(held) <= 256 and sum(late < early for early, late in pairwise(held)) >= 2
    talker.close(talk.slot)


def _broken(**fields: Any) -> stage_pb2.Payload:
    made = payload(2, 1)
    thought = made.thought
    if "ids" in fields:
        del thought.token_ids[:]
        thought.token_ids.extend(fields["ids"])
    for name in ("dtype", "data"):
        if name in fields:
            setattr(thought.hidden, name, fields[name])
    if "shape" in fields:
        del thought.hidden.shape[:]
        thought.hidden.shape.extend(fields["shape"])
    return made


NAN = np.array([[0.0] * LLM_DIM, [0.0] * (LLM_DIM - 1) + [np.nan]], "<f4").tobytes()


@pytest.mark.parametrize(
    ("bad", "param"),
    [
        (_broken(data=NAN), "thought.hidden.data"),
        (_broken(data=b"1234"), "thought.hidden.data"),
        (_broken(shape=[2, LLM_DIM + 1]), "thought.hidden.shape"),
        (_broken(dtype=stage_pb2.D_TYPE_UNSPECIFIED), "thought.hidden.dtype"),
        (_broken(ids=[5]), "thought.hidden.shape"),
        (_broken(ids=[]), "thought.hidden"),
        (_broken(ids=[5, 152_064]), "thought.token_ids"),
        (_broken(ids=[5, -1]), "thought.token_ids"),
        (payload(65, 1), "thought.token_ids"),
    ],
)
def test_a_bad_thought_ends_its_turn_only(talker: MiniCpmTalkerEngine, bad: stage_pb2.Payload, param: str) -> None:
    talk, other = Talk(talker, "bad"), Talk(talker, "b")
    talk.say(ONE, payload(2, 1))
    _turn(other, ONE, 1, 4, seed=ord("b"))
    run(talker, talk, other, steps=5)
    talk.say(ONE, bad)
    (finish,) = talk.ends(ONE)
    assert finish.error.code == stage_pb2.StageError.CODE_INVALID_ARGUMENT and finish.error.param == param
    talk.say(ONE, payload(2, 1), last=True)
    _turn(talk, TWO, 2)
    run(talker, talk, other)
    assert len(talk.ends(ONE)) == 1 and talk.codes(TWO) == _alone(talker, "bad", TWO, 2)
    assert other.codes(ONE) == _alone(talker, "b", ONE, 1, 4, seed=ord("b"))
    for each in (talk, other):
        talker.close(each.slot)


@pytest.mark.behaviour("S2")
def test_logits_that_are_not_finite_fail_one_session(talker: MiniCpmTalkerEngine) -> None:
    talk, other = Talk(talker, "ill"), Talk(talker, "b")
    _turn(talk, ONE, 3, 3)
    _turn(other, ONE, 1, 4, seed=ord("b"))
    run(talker, talk, other, steps=9)
    talker._pool.storage[:, talk.slot.state.table.pages[0], 1, :, 2] = torch.nan
    run(talker, talk, other)
    (finish,) = talk.ends(ONE)
    assert finish.error.code == stage_pb2.StageError.CODE_ENGINE_FAILED and not talk.codes(ONE)
    assert other.codes(ONE) == _alone(talker, "b", ONE, 1, 4, seed=ord("b"))
    _turn(talk, TWO, 2)
    run(talker, talk)
    assert talk.codes(TWO) == _alone(talker, "ill", TWO, 2)
    for each in (talk, other):
        talker.close(each.slot)


@pytest.mark.behaviour("S2")
def test_a_turn_that_fails_with_its_first_words_leaves_nothing_to_the_next(talker: MiniCpmTalkerEngine) -> None:
    """States so large that their projection overflows: what was made of them must not stay in the session's context."""
    talk, other = Talk(talker, "ill"), Talk(talker, "b")
    words = payload(3, 1, turn_end=True)
    words.thought.hidden.data = torch.full((3, LLM_DIM), 3e38).numpy().tobytes()
    talk.say(ONE, words, last=True)
    _turn(other, ONE, 1, 4, seed=ord("b"))
    run(talker, talk, other)
    (finish,) = talk.ends(ONE)
    assert finish.error.code == stage_pb2.StageError.CODE_ENGINE_FAILED
    assert talk.slot.state.table.length == 0
    _turn(talk, TWO, 2)
    run(talker, talk)
    assert talk.codes(TWO) == _alone(talker, "ill", TWO, 2)
    assert other.codes(ONE) == _alone(talker, "b", ONE, 1, 4, seed=ord("b"))
    for each in (talk, other):
        talker.close(each.slot)


def test_a_step_that_raises_changes_nothing(talker: MiniCpmTalkerEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = _alone(talker, "again", ONE, 4, 3)
    talk = Talk(talker, "again")
    _turn(talk, ONE, 4, 3)
    decoder = talker._speaker._model.decoder
    real, failing = decoder.forward, [0, 3, 25, 26]

    def sometimes(*arguments: Any) -> Any:
        if failing and calls[0] == failing[0]:
            failing.pop(0)
            raise RuntimeError("out of memory")
        calls[0] += 1
        return real(*arguments)

    calls = [0]
    monkeypatch.setattr(decoder, "forward", sometimes)
    failures = 0
    while talker.ready(talk.slot) is not None:
        try:
            talker.step([talk.slot])
        except RuntimeError:
            failures += 1
    assert failures == 4 and talk.codes(ONE) == expected
    talk.say(TWO, payload(2, 1))
    talker.failed(talk.slot, TWO)
    talk.say(TWO, payload(2, 2), last=True)
    assert talker.ready(talk.slot) is None
    talker.close(talk.slot)


def test_every_session_has_its_memory_and_no_more(talker: MiniCpmTalkerEngine) -> None:
    card = talker.card
    assert (card.stage, card.reads, card.makes, card.batch, card.unit_ms) == ("talker", ("thought",), ("codes",), 4, 1000)
    assert card.kv_bytes == 4 * card.kv_bytes_per_session == talker._pool.bytes - talker._pool.page_bytes
    talks = [Talk(talker, str(index)) for index in range(4)]
    with pytest.raises(PoolExhausted):
        Talk(talker, "one too many")
    for talk in talks:
        talker.close(talk.slot)
    talk = Talk(talker, "again")
    talker.close(talk.slot)


def test_a_session_s_manner_and_seed(talker: MiniCpmTalkerEngine) -> None:
    def spoken(name: str, **config: Any) -> list[list[int]]:
        talk = Talk(talker, name, **config)
        _turn(talk, ONE, 3)
        run(talker, talk)
        talker.close(talk.slot)
        return talk.codes(ONE)

    assert spoken("x", seed=5) == spoken("y", seed=5) != spoken("y")
    assert spoken("x") != spoken("y")
    assert spoken("x", greedy=True) == spoken("y", greedy=True)
    assert spoken("x", temperature=0.5) != spoken("x", temperature=0.8) == spoken("x")


@pytest.mark.parametrize(
    ("config", "param"),
    [
        ({"voice": "joe"}, "voice"),
        ({"temperature": 0}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"repetition_penalty": "1"}, "repetition_penalty"),
        ({"greedy": 1}, "greedy"),
        ({"seed": -1}, "seed"),
        ({"seed": 1 << 63}, "seed"),
    ],
)
def test_a_bad_configuration_is_named(talker: MiniCpmTalkerEngine, config: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidConfig) as refusal:
        talker.validate(config)
    assert refusal.value.param == param


def test_settings_that_cannot_hold_a_unit_are_refused() -> None:
    with pytest.raises(ValidationError, match="positions"):
        MiniCpmTalkerSettings(checkpoint=Path(), positions=256, thought_tokens=200)
