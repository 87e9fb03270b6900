"""Helm's own records, Secrets, are sent as protobuf: as much of it as they use."""

from __future__ import annotations

import base64
from collections import defaultdict
from typing import Any

Fields = dict[int, list[bytes]]


def secret(data: bytes) -> dict[str, Any]:
    """A Secret out of the envelope `k8s\\0` (runtime.Unknown, whose field 2 is the object)."""
    found = _fields(_fields(data[4:])[2][0])
    meta = _fields(found[1][0])
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": meta[1][0].decode(), "labels": {key: value.decode() for key, value in _map(meta[11]).items()}},
        "data": {key: base64.b64encode(value).decode() for key, value in _map(found[2]).items()},
        "type": found[3][0].decode(),
    }


def _map(entries: list[bytes]) -> dict[str, bytes]:
    pairs = map(_fields, entries)
    return {pair[1][0].decode(): pair[2][0] if pair[2] else b"" for pair in pairs}


def _fields(data: bytes) -> Fields:
    """By number: the contents that have a length; numbers are passed over."""
    found: Fields = defaultdict(list)
    at = 0
    while at < len(data):
        tag, at = _number(data, at)
        if tag & 7 == 2:
            length, at = _number(data, at)
            found[tag >> 3].append(data[at : at + length])
            at += length
        elif tag & 7 == 0:
            _, at = _number(data, at)
        else:
            raise ValueError(f"wire type {tag & 7} is in no Secret")
    return found


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
