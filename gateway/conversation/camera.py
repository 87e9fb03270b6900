"""What the client shows: camera frames, each within the unit that is open when it comes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .commands import Frame
from .effects import InputImage
from .errors import Refusal

if TYPE_CHECKING:
    from .session import Conversation

SOURCE = "camera"
REMEMBERED = 32
"""Frames whose event is known when the model refuses them."""


def judged(c: Conversation, frames: tuple[Frame, ...], t_ms: int | None, param: str) -> list[InputImage]:
    """The frames as they go to the model. Raises Refusal, and nothing changed. t_ms None: they were taken now."""
    if not frames:
        return []
    if not c.graph.readers(SOURCE, "image"):
        raise Refusal("unsupported_value", param, why="no model here reads images")
    first_ms = c.graph.native.first_ms
    end_ms = c.native.boundary_ms or first_ms
    at = c.input.end_ms(c.config.input_format) if t_ms is None else t_ms
    start_ms = end_ms - c.graph.native.unit_ms if end_ms > first_ms else 0
    if t_ms is not None and not start_ms <= t_ms < end_ms:
        raise Refusal("frame_out_of_time", "video_frames_t_ms", start_ms=max(0, start_ms), end_ms=end_ms)
    if c.native.frames + len(frames) > c.limits.max_unit_frames:
        raise Refusal("too_many_frames", param, limit=c.limits.max_unit_frames, held=c.native.frames)
    return [InputImage(frame.media_type, frame.data, at, frame.max_slices) for frame in frames]


def show(c: Conversation, images: list[InputImage], event_id: str | None) -> None:
    """Numbered: one that comes again after a takeover is not seen twice."""
    c.native.frames += len(images)
    for image in images:
        c.input.frames += 1
        events = c.memory.frame_events
        events[c.input.frames] = event_id
        while len(events) > REMEMBERED:
            del events[next(iter(events))]
        c.relay(SOURCE, "image", c.input.frames, image)
