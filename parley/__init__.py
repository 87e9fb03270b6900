"""Parley's client: live spoken conversations over OpenAI Realtime, in a few lines.

```python
async with parley.connect("http://127.0.0.1:8080") as session:
    await session.update(turn_detection={"type": "semantic_vad"})
    await session.send_audio(pcm16)
    async for event in session:
        ...
```
"""

from __future__ import annotations

from .client import (
    AtCapacity,
    BadPicture,
    ConnectError,
    ConnectionLost,
    EventsLost,
    Limits,
    OutageTooLong,
    ParleyError,
    ProtocolError,
    Refused,
    Reply,
    RequestFailed,
    ResumeFailed,
    Session,
    SessionClosed,
    TakenOver,
    Unauthorized,
    UnknownModel,
    Unreachable,
    connect,
    events,
)

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
