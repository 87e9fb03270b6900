"""The thin client: websockets, msgspec and tenacity, nothing else."""

from __future__ import annotations

from . import events
from .errors import (
    AtCapacity,
    ConnectError,
    ConnectionLost,
    ParleyError,
    ProtocolError,
    Refused,
    SessionClosed,
    Unauthorized,
    UnknownModel,
    Unreachable,
)
from .session import Session, connect

__all__ = [
    "AtCapacity",
    "ConnectError",
    "ConnectionLost",
    "ParleyError",
    "ProtocolError",
    "Refused",
    "Session",
    "SessionClosed",
    "Unauthorized",
    "UnknownModel",
    "Unreachable",
    "connect",
    "events",
]
