"""Sessions in any order of codes, steps, cancels, leaves, voices and failures: each sounds as it does alone, sample for sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from numpy.typing import NDArray

from stage_kit import Label, Slot, StepFailed
from tests.support.graphs import RehearsedGraphs
from tests.vocoder_svc.minicpmo45.test_engine import OTHER, Session, engine_on
from vocoder_svc.minicpmo45.engine import MiniCpmVocoderEngine

SLOTS = 3
VOICES: tuple[dict[str, Any], ...] = ({}, OTHER)
COUNTS = (0, 1, 2, 4, 5, 7, 22, 23, 25, 25, 25, 26, 28, 50)
SECOND, CODE = 24_000, 960
Message = tuple[int, bool]
"""How many codes, and whether they are the last."""
Sound = list[NDArray[np.float32]]
Alone = Callable[[int, int, tuple[Message, ...]], Sound]
"""Of voice, turn and messages: the pieces, without silence in front."""


class Turn(msgspec.Struct):
    """What is known of a turn of a session."""

    label: Label
    messages: list[Message] = []
    voice: int = 0
    """Once it has begun."""
    whole: bool = True
    """All of it is to be heard."""

    @property
    def complete(self) -> bool:
        return bool(self.messages) and self.messages[-1][1]

    @property
    def codes(self) -> int:
        return sum(count for count, _ in self.messages)


def spoken(turn: int, index: int, count: int) -> list[int]:
    return np.random.default_rng(1000 * turn + index).integers(0, 6561, count).tolist()  # type: ignore[no-any-return]


def say(session: Session, turn: Turn, index: int) -> None:
    count, last = turn.messages[index]
    session.codes(turn.label, spoken(turn.label.turn, index, count), last=last)


class Talker:
    """A session, and what is known of it."""

    def __init__(self, engine: MiniCpmVocoderEngine, voice: int) -> None:
        self.session, self.voice = Session(engine, **VOICES[voice]), voice
        self.session.settle()
        self.turns: list[Turn] = []

    def open_turn(self) -> Turn:
        if not self.turns or self.turns[-1].complete:
            number = len(self.turns) + 1
            self.turns.append(Turn(Label(self.session.epoch, number, f"t{number}"), messages=[]))
        return self.turns[-1]

    def give_up(self) -> None:
        for turn in self.turns:
            turn.whole = False
        if self.turns and not self.turns[-1].complete:
            self.turns[-1].messages.append((0, True))


class Crowd(RuleBasedStateMachine):
    engine: MiniCpmVocoderEngine
    alone: Alone

    @initialize()
    def begin(self) -> None:
        self.here: list[Talker] = []

    @precondition(lambda self: len(self.here) < SLOTS)
    @rule(voice=st.integers(0, 1))
    def opens(self, voice: int) -> None:
        self.here.append(Talker(self.engine, voice))

    @precondition(lambda self: self.here)
    @rule(data=st.data(), count=st.sampled_from(COUNTS), last=st.booleans())
    def says(self, data: st.DataObject, count: int, last: bool) -> None:
        talker = self._one(data)
        turn = talker.open_turn()
        turn.messages.append((count, last))
        say(talker.session, turn, len(turn.messages) - 1)

    @precondition(lambda self: self.here)
    @rule(data=st.data(), times=st.integers(1, 3))
    def steps(self, data: st.DataObject, times: int) -> None:
        chosen = data.draw(st.sets(st.sampled_from(range(len(self.here))), min_size=1))
        for _ in range(times):
            self._step([self.here[at] for at in sorted(chosen)])

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def cancels(self, data: st.DataObject) -> None:
        talker = self._one(data)
        talker.give_up()
        talker.session.cancel(talker.session.epoch + 1)

    @precondition(lambda self: self.here)
    @rule(data=st.data(), voice=st.integers(0, 1))
    def speaks_in_another_voice(self, data: st.DataObject, voice: int) -> None:
        talker = self._one(data)
        talker.session.config, talker.voice = self.engine.validate(VOICES[voice]), voice
        self.engine.configured(talker.session.slot)
        talker.session.settle()

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def turns_to_nan(self, data: st.DataObject) -> None:
        talker = self._one(data)
        turn = talker.session.state.stream.current()
        if turn is not None and turn.begun and turn.pieces:
            with torch.inference_mode():
                self.engine._vocoder._caches._context.dit[:, :, talker.session.state.row] = torch.nan
            self._spoilt(talker, turn.label)

    @precondition(lambda self: self.here)
    @rule(sends=st.booleans())
    def raises(self, sends: bool) -> None:
        """A step raises, behind the flow or while the first session's sound is sent."""
        ready = [talker for talker in self.here if talker.session.ready()]
        if not ready:
            return
        if sends:
            current = ready[0].session.state.stream.current()
            self._spoilt(ready[0], current.label)
        with self._raising(ready[0].session if sends else None):
            self._step(ready)

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        talker = self._one(data)
        self.here.remove(talker)
        talker.give_up()
        talker.session.close()
        self._check(talker)

    @invariant()
    def every_row_is_one_sessions(self) -> None:
        rows = [talker.session.state.row for talker in self.here] if hasattr(self, "here") else []
        assert sorted([*rows, *self.engine._rows]) == list(range(SLOTS))

    def teardown(self) -> None:
        try:
            while any(talker.session.ready() for talker in self.here):
                self._step(self.here)
        finally:
            for talker in self.here:
                talker.session.close()
        for talker in self.here:
            self._check(talker)
        holders = [len(voice.holders) for voice in self.engine._voices._known.values()]
        assert sorted(holders, reverse=True)[:2] == [1, 0][: len(holders)], "the default voice's own hold, and nobody else's"

    def _one(self, data: st.DataObject) -> Talker:
        return data.draw(st.sampled_from(self.here))

    def _step(self, talkers: list[Talker]) -> None:
        """As the kit steps those of them that are ready."""
        ready = [talker for talker in talkers if talker.session.ready()]
        for talker in ready:
            current = talker.session.state.stream.current()
            if not current.begun:
                next(turn for turn in talker.turns if turn.label == current.label).voice = talker.voice
        if ready:
            self._run([talker.session.slot for talker in ready])

    def _run(self, slots: list[Slot]) -> None:
        try:
            self.engine.step(slots)
        except StepFailed as error:
            error.slot.fail(error.slot.working, "a test")
            self.engine.failed(error.slot, error.slot.working)
        except RuntimeError:
            for slot in slots:
                self._run([slot])

    def _spoilt(self, talker: Talker, label: Label) -> None:
        turn = next(each for each in talker.turns if each.label == label)
        turn.whole = False
        if not turn.complete:
            turn.messages.append((0, True))
            talker.session.codes(label, last=True)

    def _check(self, talker: Talker) -> None:
        for turn in talker.turns:
            expected = self.alone(turn.voice, turn.label.turn, tuple(turn.messages))
            found = talker.session.sound(turn.label)
            ends = [made.last for made in talker.session.made if made.label == turn.label]
            if expected and len(expected[0]) < SECOND and (len(expected) > 1 or not turn.complete):
                expected = [np.zeros(SECOND - len(expected[0]), np.float32), *expected]
            sound = np.concatenate([np.zeros(0, np.float32), *expected])
            if turn.whole and turn.complete:
                assert ends[-1:] == [True] and sum(ends) == 1
                silent = SECOND - len(expected[1]) if len(expected) > 1 and not expected[0].any() else 0
                assert len(found) == len(sound) == silent + CODE * (turn.codes + 3) * (turn.codes > 0)
            assert len(found) <= len(sound) and np.abs(found - sound[: len(found)]).max(initial=0) < 1e-3

    @contextmanager
    def _raising(self, session: Session | None) -> Iterator[None]:
        calls = [0]

        def once(*arguments: Any) -> Any:
            calls[0] += 1
            if calls[0] == 1:
                raise RuntimeError("out of memory")
            return real(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            if session is None:
                real: Any = self.engine._vocoder._sound.forward
                patch.setattr(self.engine._vocoder._sound, "forward", once)
            else:
                real = session.emit_audio
                patch.setattr(session, "emit_audio", lambda *given, **named: once())
            yield


@pytest.mark.behaviour("D1", "N46", "N48", "S2")
@pytest.mark.parametrize("graphs", [False, True])
def test_any_order_of_things_sounds_as_sessions_sound_alone(checkpoint: Path, graphs: bool) -> None:
    oracle, engine = engine_on(checkpoint, slots=1), engine_on(checkpoint, slots=SLOTS, pad_first=True)
    if graphs:
        engine._vocoder._graphs = RehearsedGraphs()

    @cache
    def alone(voice: int, turn: int, messages: tuple[Message, ...]) -> Sound:
        session = Session(oracle, **VOICES[voice])
        session.settle()
        known = Turn(Label(0, turn, f"t{turn}"), list(messages))
        for index in range(len(messages)):
            say(session, known, index)
        made = [each.sound for each in session.run() if len(each.sound)]
        session.close()
        return made

    machine = type("Machine", (Crowd,), {"engine": engine, "alone": staticmethod(alone)})
    how = settings(max_examples=12, stateful_step_count=25, deadline=None, derandomize=True, database=None)
    run_state_machine_as_test(machine, settings=how)
    for each in (oracle, engine):
        each._voices.close()
