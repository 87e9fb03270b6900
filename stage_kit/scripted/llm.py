"""Stage `llm`: a known number of known words."""

from __future__ import annotations

import time
from collections import deque
from typing import Annotated, Any

import msgspec
from parley_stage.v1 import stage_pb2

from stage_kit.engine import Append, Card, Engine, Label
from stage_kit.scripted.script import convert, reply
from stage_kit.slot import Slot


class LlmScript(msgspec.Struct, frozen=True):
    """Words of a reply, and how many of them a second; 0 is as fast as it goes."""

    words: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 12
    words_per_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class _Reply(msgspec.Struct):
    label: Label
    chunks: deque[str]
    words: int
    due: float


class ScriptedLlm(Engine):
    """Answers Messages with `script.reply(response_id, words)`, one word a chunk and step; max_tokens bounds the words."""

    def __init__(self, slots: int = 64) -> None:
        self.card = Card("llm", "scripted", "words", ("messages", "control"), ("text",), slots=slots, batch=slots)

    def validate(self, config: dict[str, Any]) -> LlmScript:
        """See LlmScript."""
        return convert(config, LlmScript)

    def open(self, slot: Slot) -> None:
        """No reply in work; several are written one after the other."""
        slot.state = deque()

    def receive(self, slot: Slot, append: Append) -> None:
        """Queues a reply."""
        payload, script = append.payload, slot.config
        kind = payload.WhichOneof("value") if payload is not None else None
        if payload is not None and kind == "messages":
            words = min(script.words, payload.messages.max_tokens or script.words)
            chunks = deque(reply(append.label.response_id, script.words)[:words])
            slot.state.append(_Reply(append.label, chunks, words, time.monotonic()))
        elif payload is not None and kind == "control" and payload.control.kind == stage_pb2.Control.KIND_FINISH:
            slot.emit(None, append.label, last=True, finish=stage_pb2.Finish(reason=stage_pb2.Finish.REASON_STOP))

    def cancelled(self, slot: Slot) -> None:
        """Drops replies of lower epochs."""
        slot.state = deque(each for each in slot.state if each.label.epoch >= slot.epoch)

    def failed(self, slot: Slot, label: Label) -> None:
        """Drops the reply."""
        slot.state = deque(each for each in slot.state if each.label != label)

    def ready(self, slot: Slot) -> float | None:
        """The earliest word first."""
        due = self.due(slot)
        return due if due is not None and due <= time.monotonic() else None

    def due(self, slot: Slot) -> float | None:
        """When the next word is to be said."""
        return slot.state[0].due if slot.state else None

    def step(self, slots: list[Slot]) -> None:
        """One word for each."""
        for slot in slots:
            current: _Reply = slot.state[0]
            word = current.chunks.popleft()
            last = not current.chunks
            finish = None
            if last:
                slot.state.popleft()
                cut = current.words < slot.config.words
                reason = stage_pb2.Finish.REASON_LENGTH if cut else stage_pb2.Finish.REASON_STOP
                finish = stage_pb2.Finish(reason=reason, output_tokens=current.words)
            current.due += 1 / slot.config.words_per_s if slot.config.words_per_s else 0
            slot.emit(stage_pb2.Payload(text=stage_pb2.Text(text=word)), current.label, last=last, finish=finish)
