"""What a native model noted of its latest units, to be built anew from: an unbroken run of notes, and what was said before it."""

from __future__ import annotations

from binascii import b2a_base64
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from gateway.graph import Graph

from .commands import NoteOut

if TYPE_CHECKING:
    from .session import Conversation

MAX_NOTE_BYTES = 1024
MAX_LOG_BYTES = 64 * 1024


class Point(Struct, frozen=True, array_like=True):
    """How far the conversation has come."""

    after: str = ""
    """The newest item; empty: there is none."""
    item_id: str = ""
    """What the model says now, if anything; it may not be an item yet."""
    chars: int = 0
    """Of its text, so far."""


class Note(Struct, frozen=True, array_like=True):
    start_ms: int
    end_ms: int
    data: bytes
    said: Point
    """When it came: its unit is told with it."""


class UnitLog(Struct):
    notes: dict[int, Note] = {}
    """By number, oldest first."""
    count: int = 0
    """Noted so far."""
    size: int = 0
    """Bytes of the notes' data."""
    reached: Point | None = None
    """Behind which the notes begin; None: they begin with the conversation."""
    awaited: bool = True
    """No note came yet for the unit whose receipt is next."""
    changed: set[int] = set()

    def add(self, note: Note) -> None:
        self.notes[self.count] = note
        self.changed.add(self.count)
        self.count, self.size = self.count + 1, self.size + len(note.data)

    def leave(self) -> None:
        """The oldest note is over: what was said until then is told as text."""
        number = next(iter(self.notes))
        note = self.notes.pop(number)
        self.changed.add(number)
        self.size, self.reached = self.size - len(note.data), note.said

    def begin_behind(self, point: Point) -> None:
        """A unit is missing: what was noted before it cannot be followed by what comes after."""
        self.changed.update(self.notes)
        self.notes, self.size, self.reached = {}, 0, point

    def item_gone(self, item_id: str, before: str | None) -> None:
        """An item left the history; `before` stood before it."""
        if self.reached is not None:
            self.reached = _without(self.reached, item_id, before)
        for number, note in self.notes.items():
            if note.said.after == item_id:
                self.notes[number] = msgspec.structs.replace(note, said=_without(note.said, item_id, before))
                self.changed.add(number)

    def told(self) -> tuple[str, ...]:
        """As the stage is told of it: of each note the msgpack array [start_ms, end_ms, data], in base64."""
        arrays = (msgspec.msgpack.encode((note.start_ms, note.end_ms, note.data)) for note in self.notes.values())
        return tuple(b2a_base64(array, newline=False).decode() for array in arrays)


def _without(point: Point, item_id: str, before: str | None) -> Point:
    return msgspec.structs.replace(point, after=before or "") if point.after == item_id else point


def span_ms(graph: Graph) -> int:
    """Of input, whose notes are kept; 0: none are, or the model's stage is not told of any."""
    mapping = graph.mappings.get(graph.model_stage)
    return graph.native.unit_log_ms if mapping is not None and "unit_log" in mapping.session.values() else 0


def noted(c: Conversation, output: NoteOut) -> None:
    """A unit is over. Without a note of every unit since the first, or since the log began anew, there is nothing to add to."""
    log, span, unit_ms = c.unit_log, span_ms(c.graph), c.graph.native.unit_ms
    if not span:
        return
    log.awaited = False
    follows = bool(log.notes) or log.reached is not None or not c.native.units
    if len(output.data) > MAX_NOTE_BYTES or not follows:
        log.begin_behind(point(c))
        return
    log.add(Note(output.start_ms, output.end_ms, output.data, point(c)))
    over_ms = min(output.end_ms, c.input.end_ms(c.config.input_format)) - span
    most = -(-span // unit_ms)  # units of silence pass, too, and take no time of the input's
    while len(log.notes) > 1 and (log.size > MAX_LOG_BYTES or len(log.notes) > most or _oldest(log).end_ms <= over_ms):
        log.leave()


def unit_done(c: Conversation) -> None:
    """The receipt of a unit: its note came before, or the log is broken."""
    if c.unit_log.awaited and c.unit_log.notes:
        c.unit_log.begin_behind(point(c))
    c.unit_log.awaited = True


def point(c: Conversation) -> Point:
    """Now."""
    after = c.history.order[-1] if c.history.order else ""
    saying = c.responses.coming[-1] if c.responses.coming else c.responses.live
    return Point(after) if saying is None else Point(after, saying.item_id, len(saying.text))


def _oldest(log: UnitLog) -> Note:
    return next(iter(log.notes.values()))
