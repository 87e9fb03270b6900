"""From a failed decode to a typed refusal. No message repeats what the client wrote."""

from __future__ import annotations

import re

import msgspec

from gateway.conversation.errors import Refusal

_LOCATED = re.compile(r"^(?P<why>.*?)(?: - at (?:`key` in )?`(?:key in )?\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>[^`]+)`")
_TYPE_NAME = re.compile(r"[a-z_]{1,40}(?:\.[a-z_]{1,40}){0,4}")

EVENT_ID_CHARS = 512


class WireRefusal(Refusal):
    """A refusal of the dialect. client_event_id is the event's own id where it could be read, else None."""

    def __init__(self, code: str, param: str | None = None, *, client_event_id: str | None = None, **details: object) -> None:
        super().__init__(code, param, **details)
        self.client_event_id = client_event_id


class _Head(msgspec.Struct):
    event_id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    type: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_heads = msgspec.json.Decoder(_Head)


def _head_text(raw: msgspec.Raw | msgspec.UnsetType) -> str | None:
    if isinstance(raw, msgspec.UnsetType):
        return None
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return value if isinstance(value, str) else None


def read_head(frame: str | bytes) -> tuple[str | None, str | None]:
    """(event_id, type) of an event that was refused, each None where it cannot be read as a usable string."""
    try:
        head = _heads.decode(frame)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None, None
    event_id = _head_text(head.event_id)
    if event_id is not None and not 1 <= len(event_id) <= EVENT_ID_CHARS:
        event_id = None
    return event_id, _head_text(head.type)


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
