"""What follows a scripted native model: codes for its thoughts, and a ramp for its codes."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from typing import Any

import msgspec
import numpy as np
from parley_stage.v1 import stage_pb2

from stage_kit.engine import Append, Card, Engine, Label
from stage_kit.scripted.script import RATE, convert, ramp
from stage_kit.slot import Slot

CODE_RATE = 25
SAMPLES_PER_CODE = RATE // CODE_RATE
CODES = 6561
LOOKAHEAD = 3
_DONE = stage_pb2.Finish(reason=stage_pb2.Finish.REASON_STOP)


class NoScript(msgspec.Struct, frozen=True):
    """Nothing to configure."""


class _Turns(msgspec.Struct):
    """Appends to answer, and how many codes each turn has so far."""

    queue: deque[Append] = msgspec.field(default_factory=deque)
    codes: dict[Label, int] = msgspec.field(default_factory=dict)


class _InTurn(Engine):
    """Answers append after append, one a step."""

    def validate(self, config: dict[str, Any]) -> NoScript:
        """Takes anything."""
        return convert(config, NoScript)

    def open(self, slot: Slot) -> None:
        """No turn."""
        slot.state = _Turns()

    def receive(self, slot: Slot, append: Append) -> None:
        """Queues it."""
        slot.state.queue.append(append)

    def cancelled(self, slot: Slot) -> None:
        """Forgets what belongs to lower epochs."""
        turns: _Turns = slot.state
        turns.queue = deque(append for append in turns.queue if append.label.epoch >= slot.epoch)
        turns.codes = {label: count for label, count in turns.codes.items() if label.epoch >= slot.epoch}

    def failed(self, slot: Slot, label: Label) -> None:
        """Forgets the turn."""
        turns: _Turns = slot.state
        turns.queue = deque(append for append in turns.queue if append.label != label)
        turns.codes.pop(label, None)

    def ready(self, slot: Slot) -> float | None:
        """First come, first served."""
        return 0.0 if slot.state.queue else None

    def step(self, slots: list[Slot]) -> None:
        """One append of each."""
        for slot in slots:
            self.answer(slot, slot.state, slot.state.queue.popleft())

    @abstractmethod
    def answer(self, slot: Slot, turns: _Turns, append: Append) -> None:
        """Answers one append."""


class ScriptedCoder(_InTurn):
    """A thought becomes the codes of one unit, which count those of the turn. One that is another turn's fails it."""

    def __init__(self, slots: int = 64, unit_ms: int = 1000, stage: str = "talker") -> None:
        self.card = Card(stage, "scripted", "codes", ("thought",), ("codes",), slots=slots, batch=slots, unit_ms=unit_ms)
        self._codes = CODE_RATE * unit_ms // 1000

    def answer(self, slot: Slot, turns: _Turns, append: Append) -> None:
        """See the class."""
        label, payload = append.label, None
        if append.payload is not None:
            told = np.frombuffer(append.payload.thought.hidden.data, "<f4")
            first = turns.codes.get(label, 0)
            if list(told) != list(append.payload.thought.token_ids) or list(told) != [label.turn, first // self._codes]:
                self.failed(slot, label)
                slot.fail(label, "the thought is not of this unit")
                return
            turns.codes[label] = first + self._codes
            codes = [code % CODES for code in range(first, first + self._codes)]
            payload = stage_pb2.Payload(codes=stage_pb2.Codes(codes=codes, rate_hz=CODE_RATE))
        if append.last:
            turns.codes.pop(label, None)
        if payload is not None or append.last:
            slot.emit(payload, label, last=append.last, finish=_DONE if append.last else None)


class ScriptedSounder(_InTurn):
    """Code c of a turn becomes samples 960 c to 960 (c + 1) of `script.ramp(session_id, ...)`, three codes later or at the end."""

    def __init__(self, slots: int = 64, stage: str = "vocoder") -> None:
        self.card = Card(stage, "scripted", "code-ramp", ("codes",), ("audio",), slots=slots, batch=slots, output_rate=RATE)

    def answer(self, slot: Slot, turns: _Turns, append: Append) -> None:
        """See the class; codes that skip one fail the turn."""
        label, first = append.label, turns.codes.get(append.label, 0)
        codes = list(append.payload.codes.codes) if append.payload is not None else []
        if codes != [code % CODES for code in range(first, first + len(codes))]:
            self.failed(slot, label)
            slot.fail(label, "codes are not contiguous")
            return
        known = turns.codes[label] = first + len(codes)
        begin, end = max(0, first - LOOKAHEAD), known if append.last else max(0, known - LOOKAHEAD)
        samples = ramp(slot.session_id, begin * SAMPLES_PER_CODE, (end - begin) * SAMPLES_PER_CODE)
        slot.emit_audio(samples.astype(np.float32) / np.float32(32768), label, last=append.last, finish=_DONE if append.last else None)
        if append.last:
            turns.codes.pop(label, None)
