"""The thin client: websockets, msgspec and tenacity, nothing else."""

from __future__ import annotations

from . import events
from .errors import (
    AtCapacity,
    BadPicture,
    ConnectError,
    ConnectionLost,
    EventsLost,
    OutageTooLong,
    ParleyError,
    ProtocolError,
    Refused,
    RequestFailed,
    ResumeFailed,
    SessionClosed,
    TakenOver,
    Unauthorized,
    UnknownModel,
    Unreachable,
)
from .limits import Limits
from .reply import Reply
from .session import Session, connect

__all__ = [
    "AtCapacity",
    "BadPicture",
    "ConnectError",
    "ConnectionLost",
    "EventsLost",
    "Limits",
    "OutageTooLong",
    "ParleyError",
    "ProtocolError",
    "Refused",
    "Reply",
    "RequestFailed",
    "ResumeFailed",
    "Session",
    "SessionClosed",
    "TakenOver",
    "Unauthorized",
    "UnknownModel",
    "Unreachable",
    "connect",
    "events",
]
