"""Sessions in any order of steps, cancels, leaves, failures and raised bursts: each draws what it draws alone, one code at a time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from stage_kit import Label
from talker_svc.minicpmo45.engine import MiniCpmTalkerEngine
from tests.support.graphs import RehearsedGraphs
from tests.talker_svc.minicpmo45.support.harness import Talk, engine, payload, run

LIMITS: dict[str, Any] = {"slots": 3, "positions": 256, "window_units": 2, "tail_codes": 62}
END_NORM = 9.0
"""Of the end code's row in the head, to the others': it is drawn now and then."""
NAMES = ("a", "b", "c", "d", "e")
CONFIGS: dict[str, dict[str, Any]] = {"b": {"greedy": True}, "d": {"temperature": 0.4, "repetition_penalty": 1.5}}
Units = tuple[int, ...]
"""Text tokens of each unit of a turn."""
Told = tuple[list[int], bool]
"""Codes of an output, and whether it is the last."""
Alone = Callable[[str, int, Units], list[Told]]
"""Of name, turn and units."""


def ending(talker: MiniCpmTalkerEngine) -> MiniCpmTalkerEngine:
    head = talker._speaker._model._head
    head[-1] *= END_NORM * head[:-1].norm(dim=1).mean() / head[-1].norm()
    return talker


def say(talk: Talk, label: Label, units: Units, index: int) -> None:
    last = index == len(units) - 1
    seed = 1000 * label.turn + 10 * index + ord(talk.slot.session_id)
    talk.say(label, payload(units[index], seed, turn_end=last), last=last)


def told(talk: Talk, label: Label) -> list[Told]:
    return [([] if each.payload is None else list(each.payload.codes.codes), each.last) for each in talk.outputs if each.label == label]


def failed(talk: Talk, label: Label) -> bool:
    return any(end.HasField("error") for end in talk.ends(label))


class Speech:
    """A session here, and what is known of its turns."""

    def __init__(self, talker: MiniCpmTalkerEngine, name: str) -> None:
        self.talk = Talk(talker, name, **CONFIGS.get(name, {}))
        self.turn = 0
        self.units: Units = ()
        self.said = 0
        self.turns: list[tuple[Label, Units, bool]] = []
        """Label, units, whether all of it is to be told."""

    @property
    def label(self) -> Label:
        return Label(self.talk.slot.epoch, self.turn, f"t{self.turn}")

    @property
    def between(self) -> bool:
        return self.said == len(self.units)

    def begin(self, units: Units) -> None:
        self.turn, self.units, self.said = self.turn + 1, units, 0
        self.turns.append((self.label, units, True))

    def give_up(self) -> None:
        """What is open is not heard to its end."""
        self.turns = [(label, units, False) for label, units, _ in self.turns]
        self.units, self.said = (), 0


class Crowd(RuleBasedStateMachine):
    talker: MiniCpmTalkerEngine
    alone: Alone

    @initialize(units=st.lists(st.integers(0, 3), min_size=2, max_size=4))
    def begin(self, units: list[int]) -> None:
        self.here: dict[str, Speech] = {}
        self.left: list[tuple[Talk, int]] = []
        """Sessions that are gone, and how much they had heard."""
        for name in NAMES[:2]:
            speech = self.here[name] = Speech(self.talker, name)
            speech.begin(tuple(units))
            say(speech.talk, speech.label, speech.units, 0)
            speech.said = 1

    @precondition(lambda self: len(self.here) < LIMITS["slots"])
    @rule(data=st.data())
    def opens(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([name for name in NAMES if name not in self.here]))
        self.here[name] = Speech(self.talker, name)

    @precondition(lambda self: self.here)
    @rule(data=st.data(), units=st.lists(st.integers(0, 3), min_size=1, max_size=4))
    def says(self, data: st.DataObject, units: list[int]) -> None:
        speech = self._one(data)
        if speech.between:
            speech.begin(tuple(units))
        say(speech.talk, speech.label, speech.units, speech.said)
        speech.said += 1

    @precondition(lambda self: self.here)
    @rule(data=st.data(), times=st.integers(1, 3))
    def steps_some(self, data: st.DataObject, times: int) -> None:
        chosen = data.draw(st.sets(st.sampled_from(sorted(self.here)), min_size=1))
        run(self.talker, *(self.here[name].talk for name in sorted(chosen)), steps=times)

    @rule(times=st.integers(1, 6))
    def steps(self, times: int) -> None:
        run(self.talker, *(speech.talk for speech in self.here.values()), steps=times)

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def cancels(self, data: st.DataObject) -> None:
        speech = self._one(data)
        speech.give_up()
        speech.talk.cancel()

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def fails(self, data: st.DataObject) -> None:
        """As the kit has it after an error."""
        speech = self._one(data)
        turn = speech.talk.slot.state.turn
        if turn is not None:
            speech.talk.slot.fail(turn.label, "a test")
            self.talker.failed(speech.talk.slot, turn.label)
            self._spoilt(speech, turn.label)

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def turns_to_nan(self, data: st.DataObject) -> None:
        speech = self._one(data)
        table, turn = speech.talk.slot.state.table, speech.talk.slot.state.turn
        if turn is not None and turn.unit is not None and table.pages:
            with torch.inference_mode():
                table.pool.spoil(list(table.pages))
            self._spoilt(speech, turn.label)

    @precondition(lambda self: self.here)
    @rule(data=st.data(), call=st.integers(1, 3), alone=st.booleans())
    def raises(self, data: st.DataObject, call: int, alone: bool) -> None:
        """The n-th forward of a step raises, and perhaps those of the sessions that are stepped alone then, as the kit does."""
        ready = [speech.talk.slot for speech in self.here.values() if self.talker.ready(speech.talk.slot) is not None]
        if not ready:
            return
        with self._raising(call):
            try:
                self.talker.step(ready)
            except RuntimeError:
                for slot in ready if len(ready) > 1 and alone else ():
                    self.talker.step([slot])

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        speech = self.here.pop(self._one(data).talk.slot.session_id)
        speech.give_up()
        self.talker.close(speech.talk.slot)
        self.left.append((speech.talk, len(speech.talk.outputs)))
        self._check(speech)

    @invariant()
    def every_page_is_one_sessions(self) -> None:
        tables = [speech.talk.slot.state.table for speech in self.here.values()] if hasattr(self, "here") else []
        held = [page for table in tables for page in table.pages]
        assert len(held) == len(set(held)) == self.talker._pool.held
        rows = [speech.talk.slot.state.row for speech in self.here.values()] if hasattr(self, "here") else []
        assert sorted([*rows, *self.talker._rows]) == list(range(LIMITS["slots"]))

    def teardown(self) -> None:
        here = list(self.here.values())
        for speech in here:
            if not speech.between:
                speech.turns[-1] = (*speech.turns[-1][:2], False)
        try:
            run(self.talker, *(speech.talk for speech in here))
        finally:
            for speech in here:
                self.talker.close(speech.talk.slot)
        for speech in here:
            self._check(speech)
        assert all(len(talk.outputs) == count for talk, count in self.left)
        assert self.talker._pool.held == 0 and self.talker._pool.free == self.talker._pool.pages - 1

    def _one(self, data: st.DataObject) -> Speech:
        return self.here[data.draw(st.sampled_from(sorted(self.here)))]

    def _spoilt(self, speech: Speech, label: Label) -> None:
        speech.turns = [(each, units, whole and each != label) for each, units, whole in speech.turns]
        if not speech.between and speech.label == label:
            # what else comes of it is ignored
            while not speech.between:
                say(speech.talk, label, speech.units, speech.said)
                speech.said += 1

    def _check(self, speech: Speech) -> None:
        for label, units, whole in speech.turns:
            found, expected = told(speech.talk, label), self.alone(speech.talk.slot.session_id, label.turn, units)
            if whole:
                assert found == expected
                continue
            if found and failed(speech.talk, label):
                assert found.pop() == ([], True)
            assert found == expected[: len(found)]

    @contextmanager
    def _raising(self, nth: int) -> Any:
        decoder = self.talker._speaker._model.decoder
        real, calls = decoder.forward, [0]

        def raising(*arguments: Any) -> Any:
            calls[0] += 1
            if calls[0] == nth:
                raise RuntimeError("out of memory")
            return real(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decoder, "forward", raising)
            yield


@pytest.fixture(scope="module")
def alone(tiny_checkpoint: Path) -> Alone:
    """What is told of a turn with nobody beside it, code by code."""
    oracle = ending(engine(tiny_checkpoint, burst=1, ahead=False, **LIMITS))

    @cache
    def once(name: str, turn: int, units: Units) -> list[Told]:
        talk, label = Talk(oracle, name, **CONFIGS.get(name, {})), Label(0, turn, f"t{turn}")
        for index in range(len(units)):
            say(talk, label, units, index)
        run(oracle, talk)
        oracle.close(talk.slot)
        return told(talk, label)

    return once


@pytest.mark.behaviour("N45", "N48", "S2")
@pytest.mark.parametrize(("burst", "ahead", "graphs"), [(5, True, True), (5, True, False), (1, True, False), (7, False, True)])
def test_any_order_of_things_draws_what_sessions_draw_alone(
    tiny_checkpoint: Path, alone: Alone, burst: int, ahead: bool, graphs: bool
) -> None:
    talker = ending(engine(tiny_checkpoint, burst=burst, ahead=ahead, **LIMITS))
    if graphs:
        talker._speaker.graphs = RehearsedGraphs()
    machine = type("Machine", (Crowd,), {"talker": talker, "alone": staticmethod(alone)})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=15, stateful_step_count=30, deadline=None, derandomize=True, database=None)
    )
