"""A session at the engine, called as the kit calls it."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from parley_stage.v1 import stage_pb2
from PIL import Image

from stage_kit import Append, Label, Slot
from stage_kit.outputs import Output
from thinker_svc.minicpmo45.engine import MiniCpmThinkerEngine


class Client:
    """One session. Its sound begins at `begins_ms` of the input timeline."""

    def __init__(self, engine: MiniCpmThinkerEngine, name: str, begins_ms: int = 0, **config: Any) -> None:
        self.engine = engine
        self.outputs: list[Output] = []
        self.woken = 0
        self.slot = Slot(name, engine.validate({"force_listen_count": 0, **config}), self.outputs.append, self._wake, 1 << 24, None)
        engine.open(self.slot)
        self._noise = np.random.default_rng(len(name))
        self._ms = begins_ms
        self._positions: dict[str, int] = {}

    def _wake(self) -> None:
        self.woken += 1

    def sound(self, ms: int, samples: np.ndarray | None = None) -> None:
        made = 0.1 * self._noise.standard_normal(ms * 16).astype(np.float32) if samples is None else samples
        self._append("client", None, made, self._ms, self._ms + ms)
        self._ms += ms

    def units(self, count: int) -> None:
        for _ in range(count):
            self.sound(1030 if self._ms == 0 else 1000)

    def frame(self, t_ms: int, data: bytes | None = None, media_type: str = "image/png", max_slices: int = 0) -> None:
        image = stage_pb2.Image(media_type=media_type, data=picture() if data is None else data, t_ms=t_ms, max_slices=max_slices)
        self._append("camera", stage_pb2.Payload(image=image))

    def go_on(self, start_ms: int, label: Label) -> None:
        control = stage_pb2.Control(kind=stage_pb2.Control.KIND_CONTINUE, start_ms=start_ms)
        self._append("core", stage_pb2.Payload(control=control), label=label)

    def close_unit(self, start_ms: int) -> None:
        control = stage_pb2.Control(kind=stage_pb2.Control.KIND_CLOSE_UNIT, start_ms=start_ms)
        self._append("core", stage_pb2.Payload(control=control))

    def skip_silence(self, start_ms: int, end_ms: int) -> None:
        control = stage_pb2.Control(kind=stage_pb2.Control.KIND_SKIP_SILENCE, start_ms=start_ms, end_ms=end_ms)
        self._append("core", stage_pb2.Payload(control=control))

    def cancel(self) -> None:
        self.slot.epoch += 1
        self.engine.cancelled(self.slot)

    def update(self, **config: Any) -> None:
        self.slot.config = self.engine.validate({"force_listen_count": 0, **config})
        self.engine.configured(self.slot)

    def kinds(self) -> list[str]:
        """What was emitted, by name, but for notes: decisions by their kind."""
        return [
            stage_pb2.Decision.Kind.Name(output.payload.decision.kind).removeprefix("KIND_").lower()
            if output.payload is not None and output.kind == "decision"
            else output.kind
            for output in self.outputs
            if output.kind != "unit_note"
        ]

    def thoughts(self) -> list[stage_pb2.Thought]:
        return [output.payload.thought for output in self.outputs if output.payload is not None and output.kind == "thought"]

    def errors(self) -> list[stage_pb2.StageError]:
        return [output.finish.error for output in self.outputs if output.finish is not None]

    def receipts(self) -> list[int]:
        return [output.unit.consumed_ms for output in self.outputs if output.unit is not None]

    def _append(self, edge: str, payload: Any, samples: Any = None, start: int = 0, end: int = 0, label: Label | None = None) -> None:
        self._positions[edge] = self._positions.get(edge, 0) + 1
        append = Append(edge, self._positions[edge], label or Label(self.slot.epoch), False, payload, samples, start, end)
        self.engine.receive(self.slot, append)


def run(*clients: Client) -> int:
    """Steps until nobody is ready; frames that are being decoded are waited for."""
    steps = 0
    while True:
        for client in clients:
            for frame in client.slot.state.camera.frames:
                frame.decoded.exception()
        ready = [client.slot for client in clients if client.engine.ready(client.slot) is not None]
        if not ready:
            return steps
        clients[0].engine.step(ready)
        steps += 1


def picture(width: int = 64, height: int = 48) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.arange(width * height * 3, dtype=np.uint8).reshape(height, width, 3)).save(buffer, "PNG")
    return buffer.getvalue()
