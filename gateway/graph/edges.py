"""The ledger of a session's edges: what was sent where, who has it, and what a source may therefore forget."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Mapping

from msgspec import Struct

from .graph import Edge, Graph


class Line(Struct, array_like=True):
    """One edge. Positions are the source's own and count from 1."""

    sent: int = 0
    """Highest position sent."""
    watermark: int = 0
    """Highest position that the reader has, by its own word."""
    in_flight: list[int] = []
    """Sent and above the watermark, ascending."""


class EdgesState(Struct):
    """What a checkpoint keeps; edges that carried nothing are left out."""

    lines: dict[str, dict[str, Line]] = {}
    """By source, then reader."""
    acknowledged: dict[str, int] = {}


class Edges:
    """Mutable, owned by the session. The `state` of one ledger, decoded, is the whole of another over the same graph."""

    def __init__(self, graph: Graph, state: EdgesState | None = None) -> None:
        self.state = EdgesState() if state is None else state
        self._edges: dict[str, dict[str, Edge]] = {}
        for edge in graph.all_edges:
            self._edges.setdefault(edge.source, {})[edge.reader] = edge

    def sent(self, source: str, reader: str, position: int) -> int:
        """Note an append; answers the position before it on this edge, to be sent as `previous`.

        Sending again what is in flight, or what the reader has, changes nothing. On a full edge that drops, the oldest counts as had.
        """
        line = self._open(source, reader)
        if position <= line.watermark:
            return position - 1
        index = bisect_left(line.in_flight, position)
        if index == len(line.in_flight) or line.in_flight[index] != position:
            insort(line.in_flight, position)
        previous = line.in_flight[index - 1] if index else line.watermark
        line.sent = max(line.sent, position)
        if (edge := self._edges[source][reader]).overflow == "drop_oldest":
            del line.in_flight[: -edge.capacity]
        return previous

    def accepted(self, reader: str, watermarks: Mapping[str, int]) -> None:
        """Take in a reader's cumulative watermarks by source; lower ones and edges that do not exist change nothing."""
        for source, watermark in watermarks.items():
            if reader not in self._edges.get(source, {}) or watermark <= self.watermark(source, reader):
                continue
            line = self._open(source, reader)
            line.watermark = watermark
            line.sent = max(line.sent, watermark)
            del line.in_flight[: bisect_right(line.in_flight, watermark)]

    def acknowledgeable(self, source: str, consumed_by_core: int) -> int:
        """The highest position that the core and all readers have; what no reader was sent counts as had. Never goes down."""
        position = consumed_by_core
        for line in self.state.lines.get(source, {}).values():
            if line.in_flight and line.in_flight[0] <= position:
                position = line.in_flight[0] - 1
        position = max(self.acknowledged(source), position)
        self.state.acknowledged[source] = position
        return position

    def acknowledged(self, source: str) -> int:
        """The last answer of `acknowledgeable`: the source still has everything above it, so a new holder reads on from here."""
        return self.state.acknowledged.get(source, 0)

    def watermark(self, source: str, reader: str) -> int:
        line = self.state.lines.get(source, {}).get(reader)
        return line.watermark if line else 0

    def in_flight(self, source: str, reader: str) -> int:
        """Positions sent and not accepted."""
        line = self.state.lines.get(source, {}).get(reader)
        return len(line.in_flight) if line else 0

    def marks(self, source: str) -> set[int]:
        """The watermarks of all readers of the source."""
        return {line.watermark for line in self.state.lines.get(source, {}).values()}

    def rewind(self, source: str, marks: Mapping[str, int]) -> None:
        """What was sent and not accepted is lost with its sender: each reader has what it says, even if it was thought to have more."""
        for reader, line in self.state.lines.get(source, {}).items():
            line.watermark = marks.get(reader, line.watermark)
            line.sent, line.in_flight = line.watermark, []

    def withdraw(self, source: str, position: int) -> None:
        """An output that came again and goes nowhere any more: nobody waits for it."""
        self._thin(source, lambda each: each != position)

    def forget_above(self, source: str, position: int) -> None:
        """The source is lost: what was in flight and did not come again from it will never come."""
        self._thin(source, lambda each: each <= position)

    def forget_up_to(self, source: str, position: int) -> None:
        """The sender is lost, and these are of a placement that the source is not at any more: they will not come again, either."""
        self._thin(source, lambda each: each > position)

    def known(self, source: str) -> int:
        """The highest output position that any reader has or was sent."""
        return max((max(line.sent, line.watermark) for line in self.state.lines.get(source, {}).values()), default=0)

    def _thin(self, source: str, kept: Callable[[int], bool]) -> None:
        for line in self.state.lines.get(source, {}).values():
            line.in_flight = [each for each in line.in_flight if kept(each)]

    def give_up(self, reader: str) -> dict[str, int]:
        """The reader is lost: all that was sent to it counts as had. Answers what that is, by source."""
        had = {}
        for source, lines in self.state.lines.items():
            if (line := lines.get(reader)) is not None:
                line.watermark, line.in_flight = line.sent, []
                had[source] = line.sent
        return had

    def replay(self, source: str, reader: str, position: int, sent: int) -> None:
        """The reader is placed anew and has this edge up to the position only; what was sent since is sent to it again, up to `sent`."""
        line = self._open(source, reader)
        line.sent, line.watermark, line.in_flight = sent, position, [sent] if sent > position else []

    def begin_anew(self, source: str, position: int) -> None:
        """The source is placed anew: nothing up to this position will come again."""
        self.state.acknowledged[source] = position

    def held(self, source: str) -> bool:
        """True when an edge that blocks is full: nothing more may be taken from the source until its reader accepts."""
        edges = self._edges.get(source, {}).values()
        return any(edge.overflow == "block" and self.in_flight(source, edge.reader) >= edge.capacity for edge in edges)

    def _open(self, source: str, reader: str) -> Line:
        return self.state.lines.setdefault(source, {}).setdefault(reader, Line())
