"""Camera frames on their way into units: decoded on threads, judged by their time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial

from parley_stage.v1 import stage_pb2
from torch import Tensor

from minicpmo45.config import UNIT_MS, VisionConfig
from stage_kit import Append, Label, Slot
from thinker_svc.minicpmo45.frames import BadFrame, Picture, read_picture
from thinker_svc.minicpmo45.line import Line

AHEAD_UNITS = 10
"""Frames of later units wait; those of a unit so far ahead are refused."""


@dataclass(slots=True)
class Frame:
    """A frame that waits for its unit."""

    t_ms: int
    append: Append
    decoded: Future[Picture]
    embeddings: Tensor | None = None
    """[slices, queries, hidden], once it was seen."""

    @property
    def readable(self) -> bool:
        """It is decoded. One that cannot be is not, though nothing more will come of it: `settle` refuses it."""
        return self.decoded.done() and self.decoded.exception() is None

    @property
    def slices(self) -> int:
        """Of a frame that is decoded, the overview included."""
        return len(self.embeddings) if self.embeddings is not None else len(self.decoded.result().slices)

    def refuse(self, slot: Slot, param: str, why: str) -> None:
        """See `refuse`."""
        refuse(slot, self.append, param, why)


def refuse(slot: Slot, append: Append, param: str, why: str) -> None:
    """Tells the client's event: the parameter names edge, position and field."""
    code = stage_pb2.StageError.CODE_INVALID_ARGUMENT
    label = Label(slot.epoch, append.label.turn, append.label.response_id)
    slot.fail(label, why, code=code, param=f"{append.edge}[{append.position}].{param}")


@dataclass(slots=True)
class Camera:
    """Frames of one session. `most`: of a unit."""

    most: int
    frames: list[Frame] = field(default_factory=list)
    """In order of arrival."""
    _line: Line = field(default_factory=Line)

    def receive(
        self, slot: Slot, append: Append, shown: tuple[int, int, int], executor: Executor, config: VisionConfig, max_slices: int
    ) -> None:
        """Takes a frame in, or refuses it by type and changes nothing. `shown`: see `Session`."""
        assert append.payload is not None
        image = append.payload.image
        start, end, fed = shown
        if image.t_ms < start:
            refuse(slot, append, "t_ms", "late: its unit was heard already")
            return
        unit = _unit(image.t_ms, end)
        if unit >= AHEAD_UNITS:
            refuse(slot, append, "t_ms", f"more than {AHEAD_UNITS} units ahead of the sound")
            return
        count = sum(_unit(frame.t_ms, end) == unit for frame in self.frames) + (fed if unit == 0 else 0)
        if count >= self.most:
            refuse(slot, append, "frames", f"more than {self.most} frames of one unit")
            return
        slices = image.max_slices or max_slices
        decoded = self._line.submit(executor, partial(read_picture, image.data, image.media_type, slices, config))
        self.frames.append(Frame(image.t_ms, append, decoded))
        decoded.add_done_callback(lambda _: slot.wake())

    def settle(self, slot: Slot) -> None:
        """Refuses what could not be decoded."""
        for frame in [frame for frame in self.frames if frame.decoded.done() and frame.decoded.exception() is not None]:
            self.frames.remove(frame)
            error = frame.decoded.exception()
            if not isinstance(error, BadFrame):
                raise RuntimeError("a frame could not be read") from error
            frame.refuse(slot, error.param, error.why)

    def before(self, end_ms: int) -> list[Frame]:
        """Frames of the unit that ends then, and older ones, by time."""
        return sorted((frame for frame in self.frames if frame.t_ms < end_ms), key=lambda frame: frame.t_ms)

    def clear(self) -> None:
        """None of them is wanted any more."""
        for frame in self.frames:
            frame.decoded.cancel()
        self.frames = []

    def drop(self, frames: Sequence[Frame]) -> None:
        """They are in the context now, or not wanted any more."""
        if frames:
            self.frames = [frame for frame in self.frames if not any(frame is each for each in frames)]


def _unit(t_ms: int, first_end_ms: int) -> int:
    return 0 if t_ms < first_end_ms else 1 + (t_ms - first_end_ms) // UNIT_MS
