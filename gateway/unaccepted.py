"""What is sent to a stage, and of it what the stage has not said that it has."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from parley_stage.v1 import stage_pb2 as pb


class Sending(NamedTuple):
    """A message, its bytes (to measure one is to encode it), and when what it is about came in (perf_counter; 0.0: not measured)."""

    message: pb.ToStage
    size: int
    at: float = 0.0


def sending(message: pb.ToStage, at: float = 0.0) -> Sending:
    return Sending(message, message.ByteSize(), at)


@dataclass(slots=True)
class Unaccepted:
    """Sent appends and orders that the stage has not confirmed, in order of sending."""

    sent: deque[Sending] = field(default_factory=deque)
    size: int = 0

    def add(self, each: Sending) -> None:
        self.sent.append(each)
        self.size += each.size

    def trim(self, marks: pb.Watermarks) -> None:
        edges = marks.edges
        while self.sent and _covered(self.sent[0].message, edges, marks.command_number):
            self.size -= self.sent.popleft().size

    def before(self, message: pb.ToStage) -> int:
        """Bytes of what was sent before it; 0 when it was accepted meanwhile."""
        total = 0
        for each in self.sent:
            if each.message is message:
                return total
            total += each.size
        return 0


def commits(message: pb.ToStage) -> bool:
    return bool(message.append.payload.control.kind == pb.Control.KIND_COMMIT)


def _covered(message: pb.ToStage, edges: Mapping[str, int], command_number: int) -> bool:
    # the number of an order that was turned back lies below the highest obeyed one: on an edge only positions tell
    if message.HasField("append"):
        return bool(message.append.position <= edges.get(message.append.edge, 0))
    return bool(message.command_number <= command_number)
