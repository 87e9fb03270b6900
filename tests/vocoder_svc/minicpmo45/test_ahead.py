"""What goes wrong between a step and the sending of its sound, where the engine looks ahead. On slots of the kit's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from parley_stage.v1 import stage_pb2

from stage_kit import Append, Label, Slot, StepFailed
from stage_kit.audio import PCM16, Format
from stage_kit.audio_out import AudioOut
from stage_kit.outputs import Output
from tests.support.together import gatherings
from tests.vocoder_svc.minicpmo45.sounds import pcm, text
from tests.vocoder_svc.minicpmo45.test_engine import engine_on
from vocoder_svc.minicpmo45.engine import MiniCpmVocoderEngine
from vocoder_svc.minicpmo45.model import Sound

ONE, TWO, THREE = Label(1, 1, "t1"), Label(1, 2, "t2"), Label(1, 3, "t3")
TOO_LONG = {"reference_voice": text(pcm(16_000, 9.0))}


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Iterator[MiniCpmVocoderEngine]:
    made = engine_on(checkpoint, ahead=True)
    yield made
    made._voices.close()


class Talk:
    """A session on a slot of the kit's; keeps what leaves, in order."""

    def __init__(self, engine: MiniCpmVocoderEngine, **config: Any) -> None:
        self.left: list[Output] = []
        sound = AudioOut(Format(PCM16, 24_000), 24_000, 100)
        self.slot = Slot("session", engine.validate(config), self.left.append, lambda: None, 1 << 20, sound)
        self.engine = engine
        self._positions = 0
        engine.open(self.slot)

    def codes(self, label: Label, seed: int, count: int, *, last: bool = False) -> None:
        drawn = [int(code) for code in np.random.default_rng(seed).integers(0, 6561, count)]
        self.receive(label, stage_pb2.Payload(codes=stage_pb2.Codes(codes=drawn, rate_hz=25)), last=last)

    def receive(self, label: Label, payload: stage_pb2.Payload, *, last: bool = False) -> None:
        self._positions += 1
        self.engine.receive(self.slot, Append("talker", self._positions, label, last, payload))

    def settle(self) -> None:
        voices = self.engine._voices
        with voices._changed:
            assert voices._changed.wait_for(lambda: all(each.prompt or each.error for each in voices._known.values()), 20)

    @property
    def is_ready(self) -> bool:
        return self.engine.ready(self.slot) is not None

    def ends(self) -> list[tuple[Label, int]]:
        """Of each output that is a response's last: which, and how it ended."""
        return [(each.label, each.finish.reason) for each in self.left if each.last and each.finish is not None]

    def seconds(self, label: Label) -> float:
        return sum(each.audio_ms for each in self.left if each.label == label) / 1000

    def sound(self, label: Label) -> NDArray[np.float32]:
        coded = [each.payload.audio.data for each in self.left if each.label == label and each.payload is not None]
        return np.frombuffer(b"".join(coded), "<i2").astype(np.float32) / 32768


@pytest.fixture
def talks(engine: MiniCpmVocoderEngine) -> Iterator[list[Talk]]:
    """Three sessions, whose voice is there; a test closes those that it takes out."""
    opened = [Talk(engine) for _ in range(3)]
    for talk in opened:
        talk.settle()
    yield opened
    for talk in opened:
        engine.close(talk.slot)


def _run(engine: MiniCpmVocoderEngine, *talks: Talk) -> None:
    while ready := [talk.slot for talk in talks if talk.is_ready]:
        engine.step(ready)
    engine.rest()


STOP, FAILED = stage_pb2.Finish.REASON_STOP, stage_pb2.Finish.REASON_FAILED


def _breaks(monkeypatch: pytest.MonkeyPatch, talk: Talk, *, once: bool = False) -> None:
    whole = talk.slot.audio_out.push  # type: ignore[union-attr]

    def push(*args: Any, **named: Any) -> Any:
        if once:
            monkeypatch.setattr(talk.slot.audio_out, "push", whole)
        raise RuntimeError("no")

    monkeypatch.setattr(talk.slot.audio_out, "push", push)


class Counted:
    """Looks who had sent what when the networks gave their outcome."""

    def __init__(self, step: Any, *talks: Talk) -> None:
        self.made: list[tuple[bool, ...]] = []
        self._step, self._talks = step, talks

    def __call__(self, *args: Any) -> Any:
        outcome = self._step(*args)
        self.made.append(tuple(bool(talk.left) for talk in self._talks))
        return outcome


@pytest.mark.behaviour("S1", "S2", "N46")
def test_a_step_s_sound_is_sent_while_the_next_is_made(
    engine: MiniCpmVocoderEngine, talks: list[Talk], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, bad, other = talks
    with monkeypatch.context() as patch:
        patch.setattr(engine._settings, "ahead", False)
        expected = _alone(engine, (7, 25), (8, 30))
    gone = Talk(engine)
    for talk in (first, gone, bad):
        talk.codes(ONE, 7, 25)
        talk.codes(ONE, 8, 30, last=True)
    other.codes(ONE, 7, 25, last=True)
    _breaks(monkeypatch, bad)
    counted = Counted(engine._vocoder.step, first, other)
    monkeypatch.setattr(engine._vocoder, "step", counted)
    engine.step([first.slot, gone.slot, bad.slot])
    assert not first.left and not gone.left
    engine.close(gone.slot)
    with pytest.raises(StepFailed) as failed:
        engine.step([other.slot, first.slot])
    assert failed.value.slot is bad.slot and bad.ends() == [(ONE, FAILED)] and not bad.is_ready
    assert counted.made == [(False, False), (True, False)], "sent once the device was at work, before anything of it was read"
    _run(engine, other)
    _run(engine, first)
    assert not gone.left and first.ends() == other.ends() == [(ONE, STOP)]
    sound = first.sound(ONE)
    assert len(sound) == len(expected) and np.abs(sound - expected).max() < 1e-3 * np.abs(expected).max()


def _alone(engine: MiniCpmVocoderEngine, *messages: tuple[int, int]) -> NDArray[np.float32]:
    """Sound of a turn of these seeds and counts of codes."""
    talk = Talk(engine)
    talk.settle()
    for number, (seed, count) in enumerate(messages, 1):
        talk.codes(ONE, seed, count, last=number == len(messages))
    _run(engine, talk)
    engine.close(talk.slot)
    return talk.sound(ONE)


@pytest.mark.behaviour("S2")
def test_sound_that_cannot_be_sent_while_its_turn_s_last_is_made_fails_alone(
    engine: MiniCpmVocoderEngine, talks: list[Talk], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, *good = talks
    for talk in talks:
        talk.codes(ONE, 1, 25, last=True)
    _breaks(monkeypatch, bad)
    slots = [talk.slot for talk in (good[0], bad, good[1])]
    engine.step(slots)
    with pytest.raises(StepFailed) as failed:
        engine.step(slots)
    assert failed.value.slot is bad.slot
    _run(engine, *talks)
    assert bad.ends() == [(ONE, FAILED)] and not bad.seconds(ONE)
    for talk in good:
        assert talk.ends() == [(ONE, STOP)] and talk.seconds(ONE) == pytest.approx(28 * 0.04)


@pytest.mark.behaviour("S2")
def test_sound_that_cannot_be_sent_is_charged_to_its_own_turn(
    engine: MiniCpmVocoderEngine, talks: list[Talk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session works for the next one by then."""
    talk = talks[0]
    talk.codes(ONE, 1, 22, last=True)
    talk.codes(TWO, 2, 50, last=True)
    engine.step([talk.slot])
    _breaks(monkeypatch, talk, once=True)
    with pytest.raises(StepFailed):
        engine.step([talk.slot])
    assert talk.slot.working == ONE
    _run(engine, talk)
    assert talk.ends() == [(ONE, FAILED), (TWO, STOP)]


def _spoils(monkeypatch: pytest.MonkeyPatch, engine: MiniCpmVocoderEngine, *rows: int) -> None:
    """The next step's networks give no numbers for these rows of the batch."""
    whole = engine._vocoder.step

    def step(*args: Any) -> list[Sound]:
        monkeypatch.setattr(engine._vocoder, "step", whole)
        return [Sound(None) if row in rows else sound for row, sound in enumerate(whole(*args))]

    monkeypatch.setattr(engine._vocoder, "step", step)


def _served(engine: MiniCpmVocoderEngine, talks: list[Talk]) -> list[int]:
    """Runs them as the kit does; which were told to have failed, in order."""
    told: list[int] = []
    while True:
        ready = [talk.slot for talk in talks if talk.is_ready]
        try:
            engine.step(ready) if ready else engine.rest()
        except StepFailed as failure:
            told += [number for number, talk in enumerate(talks) if talk.slot is failure.slot]
            failure.slot.fail(failure.slot.working, "the engine failed")
            engine.failed(failure.slot, failure.slot.working)
        else:
            if not ready:
                return told


@pytest.mark.behaviour("S2")
@pytest.mark.parametrize("ahead", [False, True])
def test_every_failure_of_a_step_is_told_and_ends_its_own_turn_alone(
    engine: MiniCpmVocoderEngine, talks: list[Talk], monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    """Both ways at once: values that are no numbers, of two, and sound that cannot be sent."""
    monkeypatch.setattr(engine._settings, "ahead", ahead)
    talks.append(Talk(engine))
    for talk in talks:
        talk.codes(ONE, 1, 22, last=True)
        talk.codes(TWO, 2, 22, last=True)
    _spoils(monkeypatch, engine, 0, 2)
    _breaks(monkeypatch, talks[1], once=True)
    assert _served(engine, talks) == [0, 2, 1]
    *bad, good = talks
    for talk in bad:
        assert talk.ends() == [(ONE, FAILED), (TWO, STOP)] and not talk.seconds(ONE)
    assert good.ends() == [(ONE, STOP), (TWO, STOP)]


@pytest.mark.behaviour("S2")
def test_two_turns_of_a_session_that_fail_in_one_step_end_once_each(
    engine: MiniCpmVocoderEngine, talks: list[Talk], monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = talks[0]
    for number, label in enumerate((ONE, TWO, THREE)):
        talk.codes(label, number, 22, last=True)
    engine.step([talk.slot])
    _breaks(monkeypatch, talk, once=True)
    _spoils(monkeypatch, engine, 0)
    assert _served(engine, talks) == [0, 0]
    assert talk.ends() == [(ONE, FAILED), (TWO, FAILED), (THREE, STOP)]


def test_nobody_is_told_of_a_session_that_is_over(engine: MiniCpmVocoderEngine, talks: list[Talk], monkeypatch: pytest.MonkeyPatch) -> None:
    for talk in talks:
        talk.codes(ONE, 1, 22, last=True)
    _spoils(monkeypatch, engine, 0, 1, 2)
    with pytest.raises(StepFailed) as failed:
        engine.step([talk.slot for talk in talks])
    assert failed.value.slot is talks[0].slot
    engine.close(talks.pop(1).slot)
    assert _served(engine, talks) == [1]
    assert talks[1].ends() == [(ONE, FAILED)]


def test_a_turn_that_is_refused_ends_behind_the_turn_before_it(engine: MiniCpmVocoderEngine, talks: list[Talk]) -> None:
    talk = talks[0]
    talk.codes(ONE, 1, 22, last=True)
    engine.step([talk.slot])
    assert not talk.left
    talk.slot.config = engine.validate(TOO_LONG)
    engine.configured(talk.slot)
    talk.codes(TWO, 2, 50, last=True)
    talk.settle()
    engine.step([talk.slot])
    engine.rest()
    assert talk.ends() == [(ONE, STOP), (TWO, FAILED)]


def test_codes_that_are_refused_end_their_turn_behind_its_sound_and_the_turn_before_it(
    engine: MiniCpmVocoderEngine, talks: list[Talk]
) -> None:
    talk, wrong = talks[0], stage_pb2.Payload(codes=stage_pb2.Codes(codes=[6561], rate_hz=25))
    talk.codes(ONE, 1, 25)
    engine.step([talk.slot])
    talk.receive(ONE, wrong)
    talk.receive(TWO, wrong)
    engine.rest()
    assert talk.ends() == [(ONE, FAILED), (TWO, FAILED)]
    assert talk.left[-2].label == ONE and talk.left[-2].last, "nothing of it comes behind its end"
    assert talk.seconds(ONE) == pytest.approx(25 * 0.04 - 0.16)


def test_what_comes_late_of_a_turn_that_is_over_does_not_end_it_again(engine: MiniCpmVocoderEngine, talks: list[Talk]) -> None:
    """Nor what no model takes, when a slot does not know any more that it ended."""
    talk, wrong = talks[0], stage_pb2.Payload(codes=stage_pb2.Codes(codes=[6561], rate_hz=25))
    talk.codes(ONE, 1, 22)
    talk.codes(TWO, 2, 22, last=True)
    _run(engine, talk)
    talk.receive(ONE, wrong)
    engine.rest()
    assert talk.ends() == [(ONE, STOP), (TWO, STOP)]


@pytest.mark.behaviour("S2")
def test_networks_that_fail_hold_no_sound_back(engine: MiniCpmVocoderEngine, talks: list[Talk], monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kit fails then comes behind what was made before."""
    talk = talks[0]
    talk.codes(ONE, 1, 22, last=True)
    talk.codes(TWO, 2, 50, last=True)
    engine.step([talk.slot])

    def failing(*_: Any) -> None:
        raise ValueError("no")

    with monkeypatch.context() as patch:
        patch.setattr(engine._vocoder, "step", failing)
        with pytest.raises(ValueError, match="no"):
            engine.step([talk.slot])
    talk.slot.fail(talk.slot.working, "the engine failed")
    engine.failed(talk.slot, talk.slot.working)
    _run(engine, talk)
    assert talk.ends() == [(ONE, STOP), (TWO, FAILED)]


def test_sound_of_a_step_leaves_together(engine: MiniCpmVocoderEngine, talks: list[Talk]) -> None:
    with gatherings(engine, [talk.left for talk in talks]) as gathered:
        for talk in talks:
            talk.codes(ONE, 1, 25, last=True)
        _run(engine, *talks)
    assert [sum(each) for each in zip(*gathered, strict=True)] == [len(talk.left) for talk in talks]
    assert all(min(each) > 0 for each in gathered if any(each)) and all(talk.left for talk in talks)
