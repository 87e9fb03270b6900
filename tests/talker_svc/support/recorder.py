"""A slot that records what an engine makes, and a loop that steps an engine as the kit does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray
from parley_stage.v1 import stage_pb2

from stage_kit import Append, Engine, Label, Slot


class Made(msgspec.Struct):
    """One output."""

    label: Label
    payload: stage_pb2.Payload | None
    sound: NDArray[np.float32]
    marks: list[stage_pb2.Mark]
    last: bool
    finish: stage_pb2.Finish | None


class Recorder:
    """Stands where a slot stands; keeps everything."""

    def __init__(self, engine: Engine, **config: Any) -> None:
        self.engine = engine
        self.session_id = "session"
        self.config = engine.validate(config)
        self.state: Any = None
        self.epoch = 0
        self.working = Label()
        self.made: list[Made] = []
        self._positions = 0
        engine.open(self.slot)

    @property
    def slot(self) -> Slot:
        return cast(Slot, self)

    def emit(self, payload: stage_pb2.Payload | None, label: Label, *, last: bool = False, finish: stage_pb2.Finish | None = None) -> None:
        self.made.append(Made(label, payload, np.zeros(0, np.float32), [], last, finish))

    def emit_audio(
        self,
        samples: NDArray[np.float32],
        label: Label,
        *,
        marks: Iterable[stage_pb2.Mark] = (),
        last: bool = False,
        finish: stage_pb2.Finish | None = None,
    ) -> None:
        self.made.append(Made(label, None, samples, list(marks), last, finish))

    def has_room(self) -> bool:
        return True

    def receive(self, label: Label, payload: stage_pb2.Payload | None = None, *, last: bool = False) -> None:
        self._positions += 1
        self.engine.receive(self.slot, Append(edge="before", position=self._positions, label=label, last=last, payload=payload))

    def say(self, label: Label, text: str, *, last: bool = False) -> None:
        self.receive(label, stage_pb2.Payload(text=stage_pb2.Text(text=text)), last=last)

    def cancel(self, epoch: int) -> None:
        self.epoch = epoch
        self.engine.cancelled(self.slot)

    def run(self) -> list[Made]:
        """Steps until there is nothing to do; what was made meanwhile."""
        start = len(self.made)
        run(self.engine, [self])
        return self.made[start:]

    def sound(self, label: Label) -> NDArray[np.float32]:
        return np.concatenate([np.zeros(0, np.float32), *(made.sound for made in self.made if made.label == label)])

    def marks(self, label: Label) -> list[tuple[int, int, bool]]:
        return [(mark.text_chars, mark.audio_ms, mark.sentence_end) for made in self.made if made.label == label for mark in made.marks]


def run(engine: Engine, recorders: list[Recorder]) -> None:
    """The most urgent slot first, one step at a time, until none is ready; then the engine rests."""
    while True:
        ready = [(urgency, index) for index, each in enumerate(recorders) if (urgency := engine.ready(each.slot)) is not None]
        if not ready:
            engine.rest()
            return
        engine.step([recorders[min(ready)[1]].slot])
