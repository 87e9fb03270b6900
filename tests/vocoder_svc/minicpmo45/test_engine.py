"""The engine on a tiny random checkpoint, stepped as the kit steps it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from parley_stage.v1 import stage_pb2

from stage_kit import InvalidConfig, Label, StepFailed
from tests.talker_svc.support.recorder import Recorder
from tests.vocoder_svc.minicpmo45.sounds import pcm, text
from vocoder_svc.minicpmo45.engine import MiniCpmVocoderEngine
from vocoder_svc.minicpmo45.settings import MiniCpmVocoderSettings

ONE, TWO = Label(1, 1, "t1"), Label(1, 2, "t2")
OTHER = {"reference_voice": text(pcm(16_000, 2.2))}

OPEN: list[Session] = []


class Session(Recorder):
    """A recorder that a voice's set-up can wake, and that keeps failures."""

    def __init__(self, engine: MiniCpmVocoderEngine, **config: Any) -> None:
        self.failures: list[tuple[Label, str, str]] = []
        super().__init__(engine, **config)
        OPEN.append(self)

    def close(self) -> None:
        OPEN.remove(self)
        self.engine.close(self.slot)

    def wake(self) -> None:
        pass

    def fail(self, label: Label, message: str, *, code: int = 0, param: str = "") -> None:
        self.failures.append((label, message, param))

    def codes(self, label: Label, codes: Any = (), *, last: bool = False) -> None:
        values = [int(code) for code in codes]
        self.receive(label, stage_pb2.Payload(codes=stage_pb2.Codes(codes=values, rate_hz=25)) if values else None, last=last)

    def ready(self) -> bool:
        return self.engine.ready(self.slot) is not None

    def settle(self) -> None:
        """Waits for the voice, without a clock of its own."""
        voices = self.engine._voices  # type: ignore[attr-defined]
        with voices._changed:
            assert voices._changed.wait_for(lambda: self._settled(), 20)

    def _settled(self) -> bool:
        return all(voice is None or voice.prompt or voice.error for voice in (self.state.voice, self.state.next_voice))


def engine_on(checkpoint: Path, **settings: Any) -> MiniCpmVocoderEngine:
    """Where nothing else is said, without silence in front of turns: sound is compared from its first sample on."""
    given = {"checkpoint": checkpoint, "slots": 4, "flow_steps": 3, "voices_bytes": 1_200_000, "pad_first": False} | settings
    made = MiniCpmVocoderEngine(MiniCpmVocoderSettings(**given))
    made.load()
    return made


@pytest.fixture(scope="module")
def loaded(checkpoint: Path) -> Iterator[MiniCpmVocoderEngine]:
    made = engine_on(checkpoint)
    yield made
    made._voices.close()


@pytest.fixture
def engine(loaded: MiniCpmVocoderEngine) -> Iterator[MiniCpmVocoderEngine]:
    """With all slots free, before and after."""
    yield loaded
    for session in list(OPEN):
        session.close()
    assert sorted(loaded._rows) == [0, 1, 2, 3]


def _codes(seed: int, count: int) -> list[int]:
    return [int(code) for code in np.random.default_rng(seed).integers(0, 6561, count)]


def _alone(engine: MiniCpmVocoderEngine, label: Label, messages: list[list[int]], **config: Any) -> NDArray[np.float32]:
    session = Session(engine, **config)
    session.settle()
    for number, codes in enumerate(messages):
        session.codes(label, codes, last=number == len(messages) - 1)
    session.run()
    session.close()
    return session.sound(label)


@pytest.mark.behaviour("D1", "X10", "N46")
def test_sound_leaves_as_codes_come_and_all_of_it(engine: MiniCpmVocoderEngine) -> None:
    session = Session(engine)
    session.settle()
    session.codes(ONE, _codes(0, 4))
    assert not session.ready()
    session.codes(ONE, _codes(1, 21))
    assert [len(made.sound) for made in session.run()] == [25 * 960 - 3840]
    session.codes(ONE, _codes(2, 25))
    assert [len(made.sound) for made in session.run()] == [24_000]
    session.codes(ONE, _codes(3, 10), last=True)
    made = session.run()
    assert [(len(each.sound), each.last) for each in made] == [(13 * 960 + 3840, True)]
    assert made[-1].finish is not None and made[-1].finish.reason == stage_pb2.Finish.REASON_STOP
    sound = session.sound(ONE)
    assert len(sound) == 63 * 960 and np.isfinite(sound).all() and np.abs(sound).max() <= 0.99 and sound.std() > 1e-3


@pytest.mark.behaviour("S1", "N46", "N48")
def test_sessions_of_two_voices_in_one_step_are_as_they_are_alone(engine: MiniCpmVocoderEngine) -> None:
    script = [
        (ONE, {}, [_codes(1, 25), _codes(2, 25), _codes(3, 6)]),
        (TWO, OTHER, [_codes(4, 7), _codes(5, 25), []]),
        (ONE, OTHER, [_codes(6, 40)]),
    ]
    expected = [_alone(engine, label, messages, **config) for label, config, messages in script]
    sessions = [Session(engine, **config) for _, config, _ in script]
    for at in range(3):
        for session, (label, _, messages) in zip(sessions, script, strict=True):
            session.settle()
            if at < len(messages):
                session.codes(label, messages[at], last=at == len(messages) - 1)
        while ready := [session for session in sessions if session.ready()]:
            engine.step([session.slot for session in ready])
    for session, (label, _, _), sound in zip(sessions, script, expected, strict=True):
        assert session.sound(label).shape == sound.shape and np.abs(session.sound(label) - sound).max() < 1e-3 * np.abs(sound).max()
    assert np.abs(expected[0][:4800] - expected[1][:4800]).max() > 1e-2


@pytest.mark.behaviour("D1", "N46")
def test_turns_are_independent_of_each_other(engine: MiniCpmVocoderEngine) -> None:
    session = Session(engine)
    session.settle()
    session.codes(ONE, _codes(1, 60))
    session.codes(TWO, _codes(2, 30), last=True)
    session.run()
    assert np.abs(session.sound(TWO) - _alone(engine, TWO, [_codes(2, 30)])).max() < 1e-6
    # the turn that never ended was let out whole
    assert len(session.sound(ONE)) == 63 * 960


def test_cancel_drops_what_waits_and_the_next_turn_is_fresh(engine: MiniCpmVocoderEngine) -> None:
    session = Session(engine)
    session.settle()
    session.codes(ONE, _codes(1, 25))
    session.run()
    session.codes(ONE, _codes(2, 25))
    session.cancel(2)
    assert not session.ready() and session.run() == []
    later = Label(2, 2, "t2")
    session.codes(later, _codes(3, 30), last=True)
    session.run()
    assert np.abs(session.sound(later) - _alone(engine, later, [_codes(3, 30)])).max() < 1e-6


REST = 3 * 960 + 3840
"""Samples of a turn that are owed once its last whole piece is out."""


@pytest.mark.behaviour("D1", "N46")
@pytest.mark.parametrize(
    ("count", "alone", "lengths"),
    [
        (1, False, [4 * 960]),
        (1, True, [4 * 960]),
        (4, True, [7 * 960]),
        (5, True, [24_000, REST]),
        (22, False, [24_000]),
        (22, True, [24_000, REST]),
        (23, False, [24_000, REST]),
        (25, False, [24_000, REST]),
        (25, True, [24_000, REST]),
        (28, False, [24_000, 6 * 960 + 3840]),
        (50, False, [24_000, 24_000, REST]),
        (50, True, [24_000, 24_000, REST]),
    ],
)
def test_every_sample_of_a_turn_of_any_length_is_there(
    engine: MiniCpmVocoderEngine, monkeypatch: pytest.MonkeyPatch, count: int, alone: bool, lengths: list[int]
) -> None:
    """A second for 25 codes, from the first on. `alone`: that no more codes come is said later."""
    monkeypatch.setattr(engine._settings, "pad_first", True)
    session, codes = Session(engine), _codes(count, count)
    session.settle()
    for at in range(0, count, 25):
        session.codes(ONE, codes[at : at + 25], last=not alone and at + 25 >= count)
        session.run()
    if alone:
        session.codes(ONE, last=True)
        session.run()
    assert [len(made.sound) for made in session.made] == lengths
    assert [made.last for made in session.made] == [False] * (len(lengths) - 1) + [True]
    sound = session.sound(ONE)
    spoken = (count + 3) * 960
    assert not sound[: len(sound) - spoken].any() and np.abs(sound[len(sound) - spoken :]).max() > 1e-3


def test_a_turn_without_codes_ends_without_sound(engine: MiniCpmVocoderEngine) -> None:
    session = Session(engine)
    session.codes(ONE, last=True)
    assert [(len(made.sound), made.last) for made in session.run()] == [(0, True)]


@pytest.mark.behaviour("S2")
def test_a_row_of_nan_fails_alone_and_its_next_turn_is_whole(engine: MiniCpmVocoderEngine) -> None:
    good, bad = Session(engine), Session(engine)
    for session in (good, bad):
        session.settle()
        session.codes(ONE, _codes(7, 25))
    engine.step([bad.slot, good.slot])
    engine._vocoder._caches._context.dit[:, :, bad.state.row] = torch.nan
    for session in (good, bad):
        session.codes(ONE, _codes(8, 25), last=True)
    with pytest.raises(StepFailed) as failed:
        engine.step([bad.slot, good.slot])
    assert failed.value.slot is bad.slot and bad.working == ONE and len(bad.made) == 1
    engine.failed(bad.slot, ONE)
    good.run()
    expected = _alone(engine, ONE, [_codes(7, 25), _codes(8, 25)])
    assert np.abs(good.sound(ONE) - expected).max() < 1e-3 * np.abs(expected).max()
    bad.codes(TWO, _codes(9, 25), last=True)
    bad.run()
    assert np.abs(bad.sound(TWO) - _alone(engine, TWO, [_codes(9, 25)])).max() < 1e-5


@pytest.mark.behaviour("S2")
def test_sound_that_cannot_be_sent_fails_its_sessions_and_is_spoken_once_by_the_others(engine: MiniCpmVocoderEngine) -> None:
    good, *bad = Session(engine), Session(engine), Session(engine)
    for session in (good, *bad):
        session.settle()
        session.codes(ONE, _codes(7, 50), last=True)

    for session in bad:
        session.emit_audio = _refused  # type: ignore[method-assign]
    for session, call in zip(bad, (lambda: engine.step([bad[0].slot, good.slot, bad[1].slot]), engine.rest), strict=True):
        with pytest.raises(StepFailed) as failed:
            call()
        assert failed.value.slot is session.slot
    assert [[label for label, *_ in session.failures] for session in bad] == [[ONE], [ONE]]
    assert not any(session.ready() for session in bad)
    good.run()
    assert np.abs(good.sound(ONE) - _alone(engine, ONE, [_codes(7, 50)])).max() < 1e-3


def _refused(*_: Any, **__: Any) -> None:
    raise RuntimeError("no")


def test_who_is_stepped_alone_while_its_voice_is_set_up_waits(engine: MiniCpmVocoderEngine) -> None:
    """A step that failed is repeated slot by slot, whether or not each is ready by then."""
    session = Session(engine, reference_voice=text(pcm(16_000, 9.0)))
    session.settle()
    session.codes(ONE, _codes(1, 25), last=True)
    session.codes(TWO, _codes(2, 25), last=True)
    # nothing is set up meanwhile
    with engine._voices._changed:
        for _ in range(2):
            engine.step([session.slot])
            assert [label for label, *_ in session.failures] == [ONE] and not session.ready()
    session.settle()
    engine.step([session.slot])
    assert [label for label, *_ in session.failures] == [ONE, TWO]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (stage_pb2.Payload(codes=stage_pb2.Codes(codes=[6561], rate_hz=25)), "codes.codes"),
        (stage_pb2.Payload(codes=stage_pb2.Codes(codes=[-1], rate_hz=25)), "codes.codes"),
        (stage_pb2.Payload(codes=stage_pb2.Codes(codes=[1], rate_hz=50)), "codes.rate_hz"),
        (stage_pb2.Payload(text=stage_pb2.Text(text="words")), "payload"),
        (stage_pb2.Payload(codes=stage_pb2.Codes(codes=[1] * 5000, rate_hz=25)), "codes"),
    ],
)
def test_codes_of_no_such_model_end_their_response_only(engine: MiniCpmVocoderEngine, message: stage_pb2.Payload, param: str) -> None:
    session = Session(engine)
    session.settle()
    session.receive(ONE, message)
    assert [(label, name) for label, _, name in session.failures] == [(ONE, param)] and not session.ready()
    session.codes(ONE, _codes(1, 25), last=True)
    assert not session.ready()
    session.codes(TWO, _codes(2, 25), last=True)
    assert session.run()[-1].last


@pytest.mark.behaviour("X14")
def test_so_many_codes_of_a_response_may_wait_and_not_one_more(engine: MiniCpmVocoderEngine) -> None:
    session = Session(engine)
    session.settle()
    session.codes(ONE, [1] * 4000)
    session.codes(ONE, [1] * 93)
    assert session.failures == []
    session.codes(ONE, [1])
    assert [(label, name) for label, _, name in session.failures] == [(ONE, "codes")]


@pytest.mark.behaviour("X11")
def test_one_voice_is_there_once_and_another_speaks_from_the_next_turn_on(engine: MiniCpmVocoderEngine) -> None:
    first, second = Session(engine), Session(engine)
    assert first.state.voice is second.state.voice
    session = first
    session.codes(ONE, _codes(1, 25))
    session.run()
    session.config = engine.validate(OTHER)
    engine.configured(session.slot)
    session.settle()
    session.codes(ONE, _codes(2, 25), last=True)
    session.run()
    session.codes(TWO, _codes(3, 25), last=True)
    session.run()
    assert np.abs(session.sound(ONE) - _alone(engine, ONE, [_codes(1, 25), _codes(2, 25)])).max() < 1e-6
    assert np.abs(session.sound(TWO) - _alone(engine, TWO, [_codes(3, 25)], **OTHER)).max() < 1e-6


def test_a_voice_that_fails_ends_the_response_by_name_and_not_the_session(engine: MiniCpmVocoderEngine) -> None:
    session = Session(engine, reference_voice=text(pcm(16_000, 9.0)))
    session.settle()
    session.codes(ONE, _codes(1, 25))
    assert session.ready()
    engine.step([session.slot])
    (label, message, param) = session.failures[0]
    assert (label, param) == (ONE, "voices_bytes") and "no room" in message and session.made == []


def test_slots_are_lent_and_given_back(engine: MiniCpmVocoderEngine) -> None:
    sessions = [Session(engine) for _ in range(4)]
    assert len({session.state.row for session in sessions}) == 4
    with pytest.raises(MemoryError):
        Session(engine)
    sessions[2].close()
    assert Session(engine).state.row not in {session.state.row for session in sessions if session is not sessions[2]}


def test_configuration_is_checked(engine: MiniCpmVocoderEngine) -> None:
    with pytest.raises(InvalidConfig) as refused:
        engine.validate({"reference_voice": text(b"\0" * 100)})
    assert refused.value.param == "reference_voice"


@pytest.mark.parametrize(
    "options",
    [{"trim": "reference", "filler": "prompt"}, {"trim": "reference_packed"}, {"flow_dtype": "bfloat16", "cache_dtype": "bfloat16"}],
)
def test_other_rules_and_dtypes_speak(checkpoint: Path, options: dict[str, Any]) -> None:
    engine = engine_on(checkpoint, pad_first=True, **options)
    session = Session(engine, **OTHER)
    session.settle()
    for number in range(4):
        session.codes(ONE, _codes(number, 25), last=number == 3)
    made = session.run()
    # filled in front to a second; 103 codes in all
    assert len(made[0].sound) == 24_000 and not made[0].sound[:3840].any()
    assert sum(len(each.sound) for each in made) == 3840 + 103 * 960 and all(np.isfinite(each.sound).all() for each in made)
    engine._voices.close()
