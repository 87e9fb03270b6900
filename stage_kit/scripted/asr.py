"""Stage `asr`: says how much of a committed span it heard."""

from __future__ import annotations

from typing import Any

import msgspec
from parley_stage.v1 import stage_pb2

from stage_kit.engine import Append, Card, Engine
from stage_kit.scripted.script import convert
from stage_kit.slot import Slot


class AsrScript(msgspec.Struct, frozen=True):
    """Nothing to configure."""


class ScriptedAsr(Engine):
    """Answers a commit of [start_ms, end_ms] with "heard N ms", N being what of that span arrived as audio."""

    def __init__(self, slots: int = 64) -> None:
        self.card = Card("asr", "scripted", "counter", ("audio", "control", "decision"), ("transcript",), slots=slots, input_rate=16000)

    def validate(self, config: dict[str, Any]) -> AsrScript:
        """See AsrScript."""
        return convert(config, AsrScript)

    def open(self, slot: Slot) -> None:
        """Nothing heard yet: the state is a list of (start_ms, end_ms)."""
        slot.state = []

    def cleared(self, slot: Slot) -> None:
        """Nothing heard again."""
        slot.state = []

    def receive(self, slot: Slot, append: Append) -> None:
        """Notes audio; answers commits."""
        spans: list[tuple[int, int]] = slot.state
        if append.samples is not None:
            if spans and spans[-1][1] == append.start_ms:
                spans[-1] = (spans[-1][0], append.end_ms)
            elif append.end_ms > append.start_ms:
                spans.append((append.start_ms, append.end_ms))
            return
        if append.payload is None or append.payload.WhichOneof("value") != "control":
            return
        control = append.payload.control
        if control.kind != stage_pb2.Control.KIND_COMMIT:
            return
        heard = sum(max(0, min(end, control.end_ms) - max(start, control.start_ms)) for start, end in spans)
        slot.state = [(max(start, control.end_ms), end) for start, end in spans if end > control.end_ms]
        transcript = stage_pb2.Transcript(
            item_id=control.item_id,
            text=f"heard {heard} ms",
            final=True,
            audio_start_ms=control.start_ms,
            audio_end_ms=control.end_ms,
        )
        slot.emit(stage_pb2.Payload(transcript=transcript), append.label)
