"""What a commit appends and a resume reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec


class Entry(msgspec.Struct, frozen=True):
    """One journaled server event: its number, Redis' time in ms when it was committed, a small head, the raw payload."""

    seq: int
    at_ms: int
    head: bytes
    payload: bytes


def decode_entries(heads: Sequence[bytes], payloads: Sequence[bytes]) -> Iterator[Entry]:
    """The entries of the two lists that `_record.lua` keeps, in order."""
    for packed, payload in zip(heads, payloads, strict=True):
        seq, at_ms, _, head = packed.split(b" ", 3)
        yield Entry(int(seq), int(at_ms), head, payload)
