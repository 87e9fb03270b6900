"""Stage `vocoder`: a ramp that is known sample by sample."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
import numpy as np
from parley_stage.v1 import stage_pb2

from stage_kit.engine import Append, Card, Engine, Label
from stage_kit.scripted.script import RATE, SAMPLES_PER_FRAME, convert, ramp
from stage_kit.slot import Slot


class VocoderScript(msgspec.Struct, frozen=True):
    """Nothing to configure."""


class _Voice(msgspec.Struct):
    """Appends to voice, and the frames voiced so far by response."""

    queue: deque[Append] = msgspec.field(default_factory=deque)
    frames: dict[str, int] = msgspec.field(default_factory=dict)


class ScriptedVocoder(Engine):
    """Frame f becomes samples 256 f to 256 (f + 1) of `script.ramp(session_id, ...)`; latents that skip a frame fail the response."""

    def __init__(self, slots: int = 64) -> None:
        self.card = Card("vocoder", "scripted", "ramp", ("latents", "control"), ("audio",), slots=slots, batch=slots, output_rate=RATE)

    def validate(self, config: dict[str, Any]) -> VocoderScript:
        """See VocoderScript."""
        return convert(config, VocoderScript)

    def open(self, slot: Slot) -> None:
        """Silence."""
        slot.state = _Voice()

    def receive(self, slot: Slot, append: Append) -> None:
        """Queues it."""
        slot.state.queue.append(append)

    def cancelled(self, slot: Slot) -> None:
        """Drops what belongs to lower epochs."""
        kept = deque(append for append in slot.state.queue if append.label.epoch >= slot.epoch)
        slot.state = _Voice(kept, {append.label.response_id: 0 for append in kept})

    def failed(self, slot: Slot, label: Label) -> None:
        """Drops the response."""
        slot.state.queue = deque(append for append in slot.state.queue if append.label != label)
        slot.state.frames.pop(label.response_id, None)

    def ready(self, slot: Slot) -> float | None:
        """First come, first served."""
        return 0.0 if slot.state.queue else None

    def step(self, slots: list[Slot]) -> None:
        """One append for each."""
        for slot in slots:
            self._voice(slot, slot.state.queue.popleft())

    def _voice(self, slot: Slot, append: Append) -> None:
        frames: dict[str, int] = slot.state.frames
        key, first = append.label.response_id, frames.get(append.label.response_id, 0)
        if append.payload is not None and append.payload.WhichOneof("value") == "latents":
            latents = append.payload.latents
            values = np.frombuffer(latents.values.data, "<f4")
            if not np.array_equal(values, np.arange(first, first + len(values))):
                self.failed(slot, append.label)
                slot.fail(append.label, "latents are not contiguous")
                return
            frames[key] = first + len(values)
            samples = ramp(slot.session_id, first * SAMPLES_PER_FRAME, len(values) * SAMPLES_PER_FRAME)
            marks = (_ending(latents.mark, frames[key]),) if latents.ends else ()
            slot.emit_audio(samples.astype(np.float32) / np.float32(32768), append.label, marks=marks)
        if append.last:
            frames.pop(key, None)
            slot.emit(None, append.label, last=True, finish=stage_pb2.Finish(reason=stage_pb2.Finish.REASON_STOP))


def _ending(mark: stage_pb2.Mark, frames: int) -> stage_pb2.Mark:
    audio_ms = frames * SAMPLES_PER_FRAME * 1000 // RATE
    return stage_pb2.Mark(text_chars=mark.text_chars, audio_ms=audio_ms, sentence_end=mark.sentence_end)
