"""The vocoder engine on the real decoder."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from parley_stage.v1 import stage_pb2

from stage_kit import InvalidConfig, Label
from tests.talker_svc.support.recorder import Recorder, run
from vocoder_svc.embedded.decoder import CHANNELS, HOP_SAMPLES, RATE_HZ, PiperDecoder
from vocoder_svc.engine import BadLatents, VocoderEngine
from vocoder_svc.settings import VocoderSettings

pytestmark = pytest.mark.models
ONE, TWO = Label(epoch=0, turn=1, response_id="resp_1"), Label(epoch=0, turn=2, response_id="resp_2")
PAUSE = RATE_HZ * VocoderSettings().sentence_pause_ms // 1000


@pytest.fixture(scope="module")
def engine() -> VocoderEngine:
    engine = VocoderEngine()
    engine.load()
    return engine


def _payload(
    values: NDArray[np.float32], *, begins: bool = True, ends: bool = True, chars: int = 1, sentence_end: bool = False
) -> stage_pb2.Payload:
    tensor = stage_pb2.Tensor(dtype=stage_pb2.D_TYPE_F32, shape=values.shape, data=values.tobytes())
    mark = stage_pb2.Mark(text_chars=chars, sentence_end=sentence_end) if ends else None
    return stage_pb2.Payload(latents=stage_pb2.Latents(values=tensor, rate_hz=RATE_HZ / HOP_SAMPLES, begins=begins, ends=ends, mark=mark))


@pytest.mark.behaviour("X10")
def test_the_first_sound_leaves_before_the_clause_is_whole(engine: VocoderEngine, latents: NDArray[np.float32]) -> None:
    session = Recorder(engine)
    session.receive(ONE, _payload(latents[:, :55], ends=False))
    assert session.run() == []
    session.receive(ONE, _payload(latents[:, 55:56], begins=False, ends=False))
    first = session.run()
    assert [len(made.sound) for made in first] == [24 * HOP_SAMPLES] and first[0].marks == [] and not first[0].last
    session.receive(ONE, _payload(latents[:, 56:136], begins=False, ends=False))
    assert [len(made.sound) for made in session.run()] == [48 * HOP_SAMPLES]


@pytest.mark.behaviour("O1")
def test_sound_is_the_whole_decode_with_pauses_between_sentences(
    engine: VocoderEngine, decoder: PiperDecoder, latents: NDArray[np.float32]
) -> None:
    session = Recorder(engine)
    clauses = [(latents[:, :90], False), (latents[:, 90:170], True), (latents[:, 170:], True)]
    for number, (values, sentence_end) in enumerate(clauses, start=1):
        session.receive(ONE, _payload(values, chars=10 * number, sentence_end=sentence_end), last=number == 3)
    session.run()
    expected = [decoder.decode(values) for values, _ in clauses]
    joined = np.concatenate([expected[0], expected[1], np.zeros(PAUSE, np.float32), expected[2]])
    sound = session.sound(ONE)
    assert sound.shape == joined.shape and np.abs(sound - joined).max() < 1e-5
    clock = [len(expected[0]), len(expected[0]) + len(expected[1]), len(joined)]
    ends = [round(samples * 1000 / RATE_HZ) for samples in clock]
    assert session.marks(ONE) == [(10, ends[0], False), (20, ends[1], True), (30, ends[2], True)]
    assert session.made[-1].last and session.made[-1].finish is not None
    assert [made.last for made in session.made].count(True) == 1


@settings(max_examples=4, deadline=None)
@given(parts=st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=6), cut=st.integers(1, 30))
def test_marks_are_monotone_and_within_the_sound(
    engine: VocoderEngine, latents: NDArray[np.float32], parts: list[tuple[int, bool]], cut: int
) -> None:
    session = Recorder(engine)
    for number, (frames, sentence_end) in enumerate(parts, start=1):
        for start in range(0, max(frames, 1), cut):
            ends = start + cut >= frames
            session.receive(
                ONE,
                _payload(
                    latents[:, start : min(start + cut, frames)], begins=start == 0, ends=ends, chars=number, sentence_end=sentence_end
                ),
            )
        session.run()
    session.receive(ONE, last=True)
    session.run()
    marks, made = session.marks(ONE), 0
    assert [chars for chars, _, _ in marks] == list(range(1, len(parts) + 1))
    assert all(before[1] <= after[1] for before, after in pairwise(marks))
    for each in session.made:
        made += len(each.sound)
        assert all(mark.audio_ms <= made * 1000 / RATE_HZ + 1 for mark in each.marks)
    assert session.made[-1].last and session.state == {}


def test_a_response_without_sound_ends_with_its_marks(engine: VocoderEngine) -> None:
    session = Recorder(engine)
    session.receive(ONE, _payload(np.zeros((CHANNELS, 0), np.float32), chars=2, sentence_end=True))
    assert session.run() == []
    session.receive(ONE, last=True)
    made = session.run()
    assert [(len(each.sound), each.last) for each in made] == [(0, True)] and session.marks(ONE) == [(2, 0, True)]
    session.receive(TWO, last=True)
    assert [(len(each.sound), each.last, each.label) for each in session.run()] == [(0, True, TWO)]


@pytest.mark.behaviour("S1")
def test_sessions_and_responses_never_mix(engine: VocoderEngine, latents: NDArray[np.float32]) -> None:
    parts = {ONE: latents[:, :100], TWO: latents[:, 100:180]}
    alone = {}
    for label, values in parts.items():
        session = Recorder(engine)
        session.receive(label, _payload(values), last=True)
        session.run()
        alone[label] = session.sound(label)
    sessions = [Recorder(engine), Recorder(engine)]
    for start in range(0, 100, 20):
        for session in sessions:
            for label, values in parts.items():
                if start < values.shape[1]:
                    ends = start + 20 >= values.shape[1]
                    session.receive(label, _payload(values[:, start : start + 20], begins=start == 0, ends=ends), last=ends)
        run(engine, sessions)
    for session in sessions:
        for label in parts:
            assert np.array_equal(session.sound(label), alone[label])  # the same bits, however the latents arrived


def test_a_cancel_drops_latents_and_clock(engine: VocoderEngine, latents: NDArray[np.float32]) -> None:
    session = Recorder(engine)
    session.receive(ONE, _payload(latents), last=True)
    engine.step([session.slot])
    session.cancel(1)
    assert session.run() == [] and session.state == {}
    after = Label(epoch=1, turn=2, response_id="resp_2")
    session.receive(after, _payload(latents[:, :30], chars=7), last=True)
    assert {made.label for made in session.run()} == {after}
    assert session.marks(after) == [(7, round(30 * HOP_SAMPLES * 1000 / RATE_HZ), False)]


def test_the_rest_of_a_failed_response_is_ignored(engine: VocoderEngine, latents: NDArray[np.float32]) -> None:
    session = Recorder(engine)
    session.receive(ONE, _payload(latents))
    engine.step([session.slot])
    assert session.working == ONE
    engine.failed(session.slot, ONE)
    session.receive(ONE, _payload(latents), last=True)
    assert session.run() == [] and session.state == {}


def test_no_more_is_made_than_the_next_seconds_need(latents: NDArray[np.float32]) -> None:
    now = 50.0
    engine = VocoderEngine(VocoderSettings(ahead_ms=1000), clock=lambda: now)
    engine.load()
    session = Recorder(engine)
    session.receive(ONE, _payload(latents), last=True)
    session.run()
    made_s = len(session.sound(ONE)) / RATE_HZ
    assert 1.0 <= made_s < 1.6 and engine.ready(session.slot) is None
    assert engine.due(session.slot) == pytest.approx(now + made_s - 1.0)
    now += 0.7
    session.run()
    assert len(session.sound(ONE)) / RATE_HZ == pytest.approx(made_s + 48 * HOP_SAMPLES / RATE_HZ)


def test_whose_listener_waits_comes_before_whose_has_sound_left(engine: VocoderEngine, latents: NDArray[np.float32]) -> None:
    ahead, waits = Recorder(engine), Recorder(engine)
    ahead.receive(ONE, _payload(latents))
    engine.step([ahead.slot])
    engine.step([ahead.slot])
    waits.receive(ONE, _payload(latents))
    urgency = {name: engine.ready(session.slot) for name, session in (("ahead", ahead), ("waits", waits))}
    assert urgency["ahead"] is not None and urgency["waits"] is not None and urgency["waits"] < urgency["ahead"]


@pytest.mark.behaviour("FR61")
def test_a_hundred_responses_one_after_the_other(engine: VocoderEngine, latents: NDArray[np.float32]) -> None:
    session = Recorder(engine)
    for turn in range(100):
        label = Label(epoch=0, turn=turn, response_id=f"resp_{turn}")
        session.receive(label, _payload(latents[:, :8]), last=True)
        session.run()
        assert len(session.sound(label)) == 8 * HOP_SAMPLES and session.made[-1].last
    assert session.state == {}


def test_latents_that_do_not_fit_are_refused(engine: VocoderEngine) -> None:
    good = np.zeros((CHANNELS, 4), np.float32)
    wrong_type, short = _payload(good), _payload(good)
    wrong_type.latents.values.dtype = stage_pb2.D_TYPE_F16
    short.latents.values.data = short.latents.values.data[:-4]
    for payload in (_payload(np.zeros((80, 4), np.float32)), _payload(good, begins=False), wrong_type, short):
        with pytest.raises(BadLatents):
            Recorder(engine).receive(ONE, payload)
    session = Recorder(engine)
    session.receive(ONE, _payload(good, ends=False))
    with pytest.raises(BadLatents):
        session.receive(ONE, _payload(good))
    session.receive(TWO, _payload(good, ends=False), last=True)
    with pytest.raises(BadLatents):
        session.run()


def test_latents_that_wait_are_bounded(folder: object) -> None:
    engine = VocoderEngine(VocoderSettings(waiting_frames=10))
    session = Recorder(engine)
    session.receive(ONE, _payload(np.zeros((CHANNELS, 10), np.float32)))
    with pytest.raises(BadLatents):
        session.receive(ONE, _payload(np.zeros((CHANNELS, 1), np.float32)))


def test_options_are_refused(engine: VocoderEngine) -> None:
    assert engine.validate({}) == {}
    with pytest.raises(InvalidConfig) as refused:
        engine.validate({"voice": "joe"})
    assert refused.value.param == "voice"
