"""Inbound edges of one session: watermarks, duplicates, gaps, checksums. Pure."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Mapping
from enum import Enum

from parley_stage.v1 import stage_pb2

REMEMBERED_CHECKSUMS = 256


class Arrival(Enum):
    """What an append is to its edge."""

    NEXT = "next"
    DUPLICATE = "duplicate"
    GAP = "gap"
    CORRUPT = "corrupt"
    """The checksum does not fit the payload, or a retry names another checksum than the append that was accepted at its position."""


class Edges:
    """Highest accepted position by edge. Judging changes nothing: only `accept` counts, after all other checks passed."""

    def __init__(self, resume_after: Mapping[str, int] | None = None) -> None:
        self._watermarks: dict[str, int] = dict(resume_after or {})
        self._held: set[str] = set()
        self._checksums: OrderedDict[tuple[str, int], int] = OrderedDict()

    def watermark(self, edge: str) -> int:
        """0 when nothing was accepted."""
        return self._watermarks.get(edge, 0)

    def judge(self, append: stage_pb2.Append) -> Arrival:
        """A duplicate is dropped silently; what was accepted stays accepted, also when a retry claims other bytes."""
        watermark = self.watermark(append.edge)
        if append.position <= watermark:
            first = self._checksums.get((append.edge, append.position), 0)
            return Arrival.CORRUPT if append.checksum and first and append.checksum != first else Arrival.DUPLICATE
        if append.previous > watermark:
            return Arrival.GAP
        if append.checksum and append.checksum != checksum(append.payload):
            return Arrival.CORRUPT
        return Arrival.NEXT

    def accept(self, append: stage_pb2.Append) -> None:
        """Counts it."""
        self._watermarks[append.edge] = append.position
        self._held.discard(append.edge)
        if append.checksum:
            self._checksums[append.edge, append.position] = append.checksum
            if len(self._checksums) > REMEMBERED_CHECKSUMS:
                self._checksums.popitem(last=False)

    def hold(self, edge: str) -> bool:
        """The edge's appends are turned back for want of room; False if they were already (its followers need no second word)."""
        if edge in self._held:
            return False
        self._held.add(edge)
        return True

    def is_held(self, edge: str) -> bool:
        """True while the edge waits for `resume`."""
        return edge in self._held

    def resume(self) -> list[tuple[str, int]]:
        """Room is back: edges to send again, each with its watermark."""
        waiting = [(edge, self.watermark(edge)) for edge in sorted(self._held)]
        self._held.clear()
        return waiting

    def snapshot(self) -> dict[str, int]:
        """Watermark by edge."""
        return dict(self._watermarks)


def checksum(payload: stage_pb2.Payload) -> int:
    """CRC-32 of what a payload carries: the bytes of audio or image, else of the deterministic serialisation."""
    kind = payload.WhichOneof("value")
    if kind == "audio":
        return zlib.crc32(payload.audio.data)
    if kind == "image":
        return zlib.crc32(payload.image.data)
    return zlib.crc32(payload.SerializeToString(deterministic=True))
