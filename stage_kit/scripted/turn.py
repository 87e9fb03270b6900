"""Stage `turn` by energy alone."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np
from parley_stage.v1 import stage_pb2

from stage_kit.engine import Append, Card, Engine, Samples
from stage_kit.scripted.script import convert
from stage_kit.slot import Slot

RATE = 16000
WINDOW_MS = 20
_WINDOW = RATE * WINDOW_MS // 1000
Ms = Annotated[int, msgspec.Meta(ge=0, le=60_000)]


class TurnScript(msgspec.Struct, frozen=True):
    """Root mean square above which a 20 ms window is speech; silence that is a pause, and that ends the turn."""

    rms: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.01
    pause_ms: Ms = 200
    silence_ms: Ms = 500
    prefix_ms: Ms = 0


class _Hearing(msgspec.Struct):
    """Windows are counted in samples from the first append after an open or clear."""

    rest: Samples
    origin_ms: int | None = None
    windows: int = 0
    speaking: bool = False
    paused: bool = False
    voice_end_ms: int = 0


class ScriptedTurn(Engine):
    """Speech starts with a loud window and stops after 500 ms without one."""

    def __init__(self, slots: int = 64) -> None:
        self.card = Card("turn", "scripted", "energy", ("audio",), ("decision",), slots=slots, batch=slots, input_rate=RATE)

    def validate(self, config: dict[str, Any]) -> TurnScript:
        """See TurnScript."""
        return convert(config, TurnScript)

    def open(self, slot: Slot) -> None:
        """Silence."""
        slot.state = _Hearing(np.zeros(0, np.float32))

    def cleared(self, slot: Slot) -> None:
        """Silence again; the timeline goes on."""
        self.open(slot)

    def receive(self, slot: Slot, append: Append) -> None:
        """Judges every whole window."""
        if append.samples is None:
            return
        hearing: _Hearing = slot.state
        if hearing.origin_ms is None:
            hearing.origin_ms = append.start_ms
        samples = np.concatenate([hearing.rest, append.samples])
        whole = len(samples) // _WINDOW
        hearing.rest = samples[whole * _WINDOW :]
        for window in samples[: whole * _WINDOW].reshape(whole, _WINDOW):
            start_ms = hearing.origin_ms + hearing.windows * WINDOW_MS
            hearing.windows += 1
            rms = float(np.sqrt(np.mean(window * window)))
            self._judge(slot, hearing, start_ms, rms)

    def _judge(self, slot: Slot, hearing: _Hearing, start_ms: int, rms: float) -> None:
        script: TurnScript = slot.config
        end_ms = start_ms + WINDOW_MS
        if rms > script.rms:
            if not hearing.speaking:
                slot.decide(
                    stage_pb2.Decision.KIND_SPEECH_STARTED, max(0, start_ms - script.prefix_ms), decided_at_ms=end_ms, reason="energy"
                )
            elif hearing.paused:
                slot.decide(stage_pb2.Decision.KIND_SPEECH_RESUMED, start_ms, decided_at_ms=end_ms, reason="energy")
            hearing.speaking, hearing.paused, hearing.voice_end_ms = True, False, end_ms
            return
        silence_ms = end_ms - hearing.voice_end_ms
        if hearing.speaking and silence_ms >= script.silence_ms:
            hearing.speaking = hearing.paused = False
            slot.decide(stage_pb2.Decision.KIND_SPEECH_STOPPED, hearing.voice_end_ms, decided_at_ms=end_ms, reason="silence")
        elif hearing.speaking and not hearing.paused and silence_ms >= script.pause_ms:
            hearing.paused = True
            slot.decide(stage_pb2.Decision.KIND_PAUSE, hearing.voice_end_ms, decided_at_ms=end_ms, reason="silence")
