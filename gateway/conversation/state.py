"""The rest of what a checkpoint's hot part holds: counters, deadlines, and which of the client's commands were decided."""

from __future__ import annotations

from msgspec import Struct

from .client import Updating
from .commands import Client

SCHEMA = 1
MAX_OVERTAKERS = 16
"""Numbered commands that may overtake others: the checkpoint holds each."""


class State(Struct):
    schema: int = SCHEMA
    seq: int = 0
    items: int = 0
    consumed: dict[str, int] = {}
    deadlines: dict[str, int] = {}
    updates: int = 1
    """Configuration generations used so far."""
    misled: list[str] = []
    """Stages that may have staged a refused configuration."""
    updating: Updating | None = None
    held_commands: list[Client] = []
    closing: bool = False
    draining: bool = False
    client_seq: int = 0
    """All client commands up to this number were decided: obeyed or refused."""
    overtaken: list[tuple[int, int]] = []
    """Runs of numbers above it, (first, count), that were decided, too, before those that wait behind an update; ascending."""
    lost: list[str] = []
    """Stages that are being placed anew."""
    bases: dict[str, int] = {}
    """Output positions that a stage's earlier placements used up."""

    def has_decided(self, number: int) -> bool:
        """It was sent again after a resume."""
        return number <= self.client_seq or any(first <= number < first + count for first, count in self.overtaken)

    def decide(self, number: int, *, overtakes: bool) -> None:
        """Once for each number. `overtakes`: commands of lower numbers are still to be decided."""
        if overtakes:
            self.overtaken = _joined(sorted([*self.overtaken, (number, 1)]))
            return
        self.client_seq = number
        while self.overtaken and self.overtaken[0][0] <= self.client_seq + 1:
            first, count = self.overtaken.pop(0)
            self.client_seq = max(self.client_seq, first + count - 1)


def _joined(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined = runs[:1]
    for first, count in runs[1:]:
        begin, length = joined[-1]
        if first == begin + length:
            joined[-1] = (begin, length + count)
        else:
            joined.append((first, count))
    return joined
