"""How a process shows that it is ready."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

ANSWER_TIMEOUT_S = 0.5


class Ready(Struct, frozen=True):
    """What a service wrote into its ready file."""

    pid: int = 0
    grpc: str | None = None
    http: str | None = None


class Readiness(Protocol):
    """Looks whether a process is ready; None means not yet."""

    def look(self) -> Ready | None: ...

    def reset(self) -> None:
        """Forgets an earlier process of the same name."""


class ReadyFile(Struct, frozen=True):
    """The service writes a JSON file (PARLEY_READY_FILE)."""

    path: Path

    def look(self) -> Ready | None:
        # a file that is only half written does not decode: not yet
        with contextlib.suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode(self.path.read_bytes(), type=Ready)
        return None

    def reset(self) -> None:
        self.path.unlink(missing_ok=True)


class StoreAnswers(Struct, frozen=True):
    """The store answers PING on its unix socket."""

    path: Path

    def look(self) -> Ready | None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.settimeout(ANSWER_TIMEOUT_S)
            client.connect(str(self.path))
            client.sendall(b"PING\r\n")
            if client.recv(16).startswith(b"+PONG"):
                return Ready()
        return None

    def reset(self) -> None:
        self.path.unlink(missing_ok=True)
