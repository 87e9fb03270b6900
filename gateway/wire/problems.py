"""From a failed decode to a typed refusal. No message repeats what the client wrote."""

from __future__ import annotations

import re
from typing import NamedTuple, TypeVar

import msgspec

from gateway.conversation.errors import Refusal

_LOCATED = re.compile(r"^(?P<why>.*?)(?: - at (?:`key` in )?`(?:key in )?\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>[^`]+)`")
_TYPE_NAME = re.compile(r"[a-z_]{1,40}(?:\.[a-z_]{1,40}){0,4}")

EVENT_ID_CHARS = 512
MAX_CLIENT_SEQ = 2**53 - 1


class WireRefusal(Refusal):
    """A refusal of the dialect. client_event_id and client_seq are the event's own where they could be read, else None."""

    def __init__(self, code: str, param: str | None = None, *, client_event_id: str | None = None, **details: object) -> None:
        super().__init__(code, param, **details)
        self.client_event_id = client_event_id
        self.client_seq: int | None = None


class _Head(msgspec.Struct):
    event_id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    type: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    client_seq: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class Head(NamedTuple):
    """What can be read of an event that was refused; None where it is not usable."""

    event_id: str | None = None
    type: str | None = None
    client_seq: int | None = None


_heads = msgspec.json.Decoder(_Head)
_T = TypeVar("_T")


def _read(raw: msgspec.Raw | msgspec.UnsetType, kind: type[_T]) -> _T | None:
    if isinstance(raw, msgspec.UnsetType):
        return None
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, RecursionError):
        return None


def read_head(frame: str | bytes) -> Head:
    try:
        head = _heads.decode(frame)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return Head()
    event_id, client_seq = _read(head.event_id, str), _read(head.client_seq, int)
    if event_id is not None and not 1 <= len(event_id) <= EVENT_ID_CHARS:
        event_id = None
    if client_seq is not None and not 1 <= client_seq <= MAX_CLIENT_SEQ:
        client_seq = None
    return Head(event_id, _read(head.type, str), client_seq)


def invalid(param: str, why: str) -> WireRefusal:
    return WireRefusal("invalid_field", param, why=why)


def unsupported(param: str, why: str) -> WireRefusal:
    return WireRefusal("unsupported_value", param, why=why)


def over_limit(param: str, limit: int, unit: str) -> WireRefusal:
    return WireRefusal("limit_exceeded", param, limit=limit, unit=unit)


def unknown_type(name: str | None) -> WireRefusal:
    """The type is repeated only when it looks like one."""
    return WireRefusal("unknown_event_type", "type", type=name if name is not None and _TYPE_NAME.fullmatch(name) else "?")


def from_validation(error: msgspec.ValidationError) -> WireRefusal:
    """The refusal behind msgspec's own: code, dotted path, and a reason without the client's values."""
    located = _LOCATED.match(str(error))
    why, path = (located["why"], located["path"] or "") if located else (str(error), "")
    missing = _MISSING.match(why)
    if missing:
        return WireRefusal("missing_field", f"{path}.{missing['name']}" if path else missing["name"])
    if why.startswith("Expected"):
        # A value never follows "Expected": only the schema's own words do.
        return invalid(path, why[0].lower() + why[1:].replace("`", "")) if path else WireRefusal("invalid_json")
    if why.startswith("Invalid"):
        return invalid(path, "it is not one of the accepted values")
    return invalid(path, "it is out of range")
