"""The talker engine on the real voice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from parley_stage.v1 import stage_pb2

from stage_kit import InvalidConfig, Label
from talker_svc.embedded.voice import CHANNELS
from talker_svc.engine import TalkerEngine
from tests.talker_svc.support.recorder import Made, Recorder, run

pytestmark = pytest.mark.models
ONE, TWO = Label(epoch=0, turn=1, response_id="resp_1"), Label(epoch=0, turn=2, response_id="resp_2")


@pytest.fixture(scope="module")
def engine() -> TalkerEngine:
    engine = TalkerEngine()
    engine.load()
    return engine


def _values(made: Made) -> NDArray[np.float32]:
    assert made.payload is not None
    tensor = made.payload.latents.values
    return np.frombuffer(tensor.data, "<f4").reshape(tuple(tensor.shape))


def _latents(made: list[Made], label: Label) -> list[stage_pb2.Latents]:
    return [each.payload.latents for each in made if each.payload is not None and each.label == label]


def _marks(made: list[Made], label: Label) -> list[tuple[int, bool]]:
    return [(latents.mark.text_chars, latents.mark.sentence_end) for latents in _latents(made, label) if latents.ends]


@pytest.mark.behaviour("X10")
def test_the_first_clause_is_spoken_while_the_text_is_still_written(engine: TalkerEngine) -> None:
    session = Recorder(engine)
    session.say(ONE, "Well, I")
    first = session.run()
    assert _marks(first, ONE) == [(5, False)] and sum(_values(made).shape[1] for made in first) > 10
    session.say(ONE, " think so.", last=True)
    rest = session.run()
    assert _marks(rest, ONE) == [(17, True)]
    assert rest[-1].last and rest[-1].finish is not None and rest[-1].finish.reason == stage_pb2.Finish.REASON_STOP
    assert [made.last for made in session.made].count(True) == 1
    assert session.state == {}


@pytest.mark.behaviour("O1")
def test_marks_rise_to_the_length_of_the_text_in_code_points(engine: TalkerEngine) -> None:
    text = "Grüße 👩‍👩‍👧, my friend! 你好。 It’s 3.5\u00a0km… e\u0301 and 😀"
    session = Recorder(engine)
    for char in text:
        session.say(ONE, char)
    session.receive(ONE, last=True)
    ends = [end for end, _ in _marks(session.run(), ONE)]
    assert ends == sorted(set(ends)) and ends[-1] == len(text)


def test_every_stretch_begins_and_ends_and_fits_an_append(engine: TalkerEngine) -> None:
    session = Recorder(engine)
    session.say(ONE, "The quick brown fox jumps over the lazy dog and then runs back to the dark forest, " * 3, last=True)
    inside = False
    for made in session.run()[:-1]:
        assert made.payload is not None
        latents = made.payload.latents
        assert latents.begins is not inside
        inside = not latents.ends
        assert made.payload.ByteSize() < 200 * 1024 + 128
        assert latents.values.dtype == stage_pb2.D_TYPE_F32 and latents.values.shape[0] == CHANNELS
        assert latents.rate_hz == pytest.approx(22050 / 256)
    assert not inside


def test_a_clause_that_is_long_to_say_leaves_room_for_others(engine: TalkerEngine) -> None:
    long, short = Recorder(engine), Recorder(engine)
    long.say(ONE, "1" * 100, last=True)
    engine.step([long.slot])
    short.say(ONE, "Yes.", last=True)
    made = long.run()
    assert len(made) > 1 and _marks(long.made, ONE) == [(100, True)]
    assert [latents.begins for latents in _latents(long.made, ONE)].count(True) == 1
    assert sum(_values(each).shape[1] for each in long.made if each.payload) > 100 * 10
    assert _marks(short.run(), ONE) == [(4, True)]


@pytest.mark.parametrize("text", ["😀", "...", " ", "你好。"])
def test_a_clause_with_nothing_to_say_still_moves_the_mark(engine: TalkerEngine, text: str) -> None:
    session = Recorder(engine)
    session.say(ONE, text, last=True)
    made = session.run()
    assert _marks(made, ONE)[-1] == (len(text), True)
    assert all(_values(each).shape == (CHANNELS, 0) for each in made[:-1])
    assert made[-1].last


def test_a_response_without_text_ends(engine: TalkerEngine) -> None:
    session = Recorder(engine)
    session.receive(ONE, last=True)
    made = session.run()
    assert [(each.payload, each.last) for each in made] == [(None, True)]


@pytest.mark.behaviour("S1")
def test_sessions_and_responses_never_mix(engine: TalkerEngine) -> None:
    texts = {ONE: "Cats sleep all day, and dogs do not.", TWO: "Seven ships sailed. None came back."}
    alone: dict[Label, list[bytes]] = {}
    for label, text in texts.items():
        session = Recorder(engine)
        session.say(label, text, last=True)
        alone[label] = [latents.SerializeToString(deterministic=True) for latents in _latents(session.run(), label)]
    sessions = [Recorder(engine), Recorder(engine)]
    for at in range(max(map(len, texts.values()))):
        for session in sessions:
            for label, text in texts.items():
                if at < len(text):
                    session.say(label, text[at], last=at == len(text) - 1)
        run(engine, sessions)
    for session in sessions:
        for label in texts:
            assert [latents.SerializeToString(deterministic=True) for latents in _latents(session.made, label)] == alone[label]


def test_a_cancel_drops_what_was_not_spoken(engine: TalkerEngine) -> None:
    session = Recorder(engine)
    session.say(ONE, "One. Two. Three. ")
    engine.step([session.slot])
    session.cancel(1)
    made = len(session.made)
    assert session.run() == [] and session.state == {}
    after = Label(epoch=1, turn=2, response_id="resp_2")
    session.say(after, "Yes.", last=True)
    assert {each.label for each in session.run()} == {after}
    assert _marks(session.made[made:], after) == [(4, True)]


def test_the_rest_of_a_failed_response_is_ignored(engine: TalkerEngine) -> None:
    session = Recorder(engine)
    session.say(ONE, "One. Two. ")
    engine.step([session.slot])
    assert session.working == ONE
    engine.failed(session.slot, ONE)
    session.say(ONE, "Three. ")
    session.say(ONE, "Four.", last=True)
    assert session.run() == [] and session.state == {}


def test_a_first_clause_is_more_urgent_than_a_later_one(engine: TalkerEngine) -> None:
    early, late = Recorder(engine), Recorder(engine)
    early.say(ONE, "One. Two. Three. ")
    engine.step([early.slot])
    late.say(ONE, "One. Two. ")
    urgency = [engine.ready(session.slot) for session in (early, late)]
    assert urgency == [1.0, 0.0]


def test_speed_takes_effect_with_the_next_response(engine: TalkerEngine) -> None:
    session = Recorder(engine)
    frames = {}
    for label, speed in ((ONE, 0.5), (TWO, 1.5)):
        session.config = engine.validate({"voice": "joe", "speed": speed})
        session.say(label, "It is a fine day today.", last=True)
        frames[label] = sum(_values(made).shape[1] for made in session.run() if made.payload)
    assert frames[ONE] > 2 * frames[TWO]


@pytest.mark.behaviour("FR61")
def test_a_hundred_responses_one_after_the_other(engine: TalkerEngine) -> None:
    session = Recorder(engine)
    for turn in range(100):
        label = Label(epoch=turn // 10, turn=turn, response_id=f"resp_{turn}")
        session.epoch = label.epoch
        session.say(label, "Yes.", last=True)
        made = session.run()
        assert _marks(made, label) == [(4, True)] and _values(made[0]).shape[1] > 10 and made[-1].last
    assert session.state == {}


@pytest.mark.parametrize(
    ("config", "param"),
    [
        ({"voice": "alloy"}, "voice"), ({"voice": None}, "voice"), ({"voice": ["joe"]}, "voice"),
        ({"speed": 0.24}, "speed"), ({"speed": 1.51}, "speed"), ({"speed": "1"}, "speed"), ({"speed": True}, "speed"),
        ({"speed": float("nan")}, "speed"),
        ({"pitch": 1}, "pitch"),
    ],
)  # fmt: skip
def test_a_bad_configuration_names_its_field(config: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        TalkerEngine().validate(config)
    assert refused.value.param == param


def test_limits_of_speed_are_allowed() -> None:
    engine = TalkerEngine()
    assert [engine.validate({"speed": speed}).speed for speed in (0.25, 1.5, 1)] == [0.25, 1.5, 1.0]
    assert engine.validate({}) == engine.validate({"voice": "default", "speed": 1.0})
