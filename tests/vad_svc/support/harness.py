"""A slot that records, and a loop that drives a real TurnEngine with it as the kit would."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from parley_stage.v1 import stage_pb2

from stage_kit import Append, Label
from vad_svc.engine import TurnEngine

RATE = 16_000


class Decided(NamedTuple):
    kind: str
    t_ms: int
    decided_at_ms: int
    label: Label
    score: float
    reason: str


class RecordingSlot:
    """Keeps what an engine decides."""

    def __init__(self, session_id: str, config: Any) -> None:
        self.session_id = session_id
        self.config = config
        self.state: Any = None
        self.epoch = 0
        self.decided: list[Decided] = []

    def decide(self, kind: int, t_ms: int, *, decided_at_ms: int, label: Label, score: float = 0.0, reason: str = "") -> None:
        name = stage_pb2.Decision.Kind.Name(kind).removeprefix("KIND_").lower()
        self.decided.append(Decided(name, t_ms, decided_at_ms, label, score, reason))

    @property
    def kinds(self) -> list[str]:
        return [decided.kind for decided in self.decided]


class Clock:
    """A wall clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Caller:
    """One session's client: sends audio in appends and counts its timeline."""

    def __init__(self, engine: TurnEngine, name: str = "s", **config: Any) -> None:
        self.engine = engine
        self.slot: Any = RecordingSlot(name, engine.validate(config))
        engine.open(self.slot)
        self.position = 0
        self.sent = 0
        self.label = Label()

    def send(self, samples: NDArray[np.float32], append_ms: int | None = 20) -> None:
        size = append_ms * RATE // 1000 if append_ms else samples.size
        for start in range(0, samples.size, size):
            piece = samples[start : start + size]
            self.position += 1
            begin, self.sent = self.sent, self.sent + piece.size
            self.engine.receive(
                self.slot,
                Append("client", self.position, self.label, False, None, piece, begin * 1000 // RATE, self.sent * 1000 // RATE),
            )

    def configure(self, **config: Any) -> None:
        self.slot.config = self.engine.validate(config)
        self.engine.configured(self.slot)

    def hear(self, samples: NDArray[np.float32], append_ms: int | None = 20) -> list[Decided]:
        """Sends it, lets the engine work, and returns what was decided meanwhile."""
        before = len(self.slot.decided)
        self.send(samples, append_ms)
        settle(self.engine, [self])
        return self.slot.decided[before:]


def settle(engine: TurnEngine, callers: list[Caller], limit_s: float = 10.0) -> int:
    """Steps until no slot is ready and none waits for a score. Returns the number of steps."""
    steps, deadline = 0, time.monotonic() + limit_s
    while time.monotonic() < deadline:
        ready = [caller.slot for caller in callers if engine.ready(caller.slot) is not None]
        if ready:
            engine.step(ready)
            steps += 1
        elif waiting := [caller.slot.state.score for caller in callers if caller.slot.state.stalled]:
            waiting[0].exception(limit_s)
        else:
            return steps
    raise TimeoutError("the engine did not come to rest")
