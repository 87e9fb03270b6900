"""Where a session's stages are, and how the record keeps it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Placement(msgspec.Struct, frozen=True, array_like=True):
    """One stage of one session: the replica, its gRPC target, and a number that rises whenever the stage is placed anew."""

    replica_id: str
    address: str
    placement: int


_DECODER = msgspec.msgpack.Decoder(dict[str, Placement])


def encode_placements(placements: Mapping[str, Placement]) -> bytes:
    """Placements by stage, for the record."""
    return msgspec.msgpack.encode(dict(placements))


def decode_placements(data: bytes) -> dict[str, Placement]:
    """Placements by stage, from the record; nothing from nothing."""
    return _DECODER.decode(data) if data else {}
