"""What can go wrong while processes are started and watched. Every message is one line for people."""

from __future__ import annotations

from pathlib import Path


class SupervisorError(Exception):
    """Base of all errors of this package."""


class BusyPort(SupervisorError):
    """Another process holds the gateway's port, or it may not be used."""


class MissingBinary(SupervisorError):
    """A program or a profile that should be started is not there."""


class NoSuchCard(SupervisorError):
    """A GPU that a service should run on is not there, or nothing would run on those that are named."""


class _OfService(SupervisorError):
    def __init__(self, name: str, message: str, log: Path) -> None:
        super().__init__(f"{message} (log: {log})")
        self.name, self.log = name, log


class ServiceDied(_OfService):
    """A service ended before it was ready."""


class NotReady(_OfService):
    """A service did not become ready in time."""


class ServiceLost(_OfService):
    """A service that had been serving died more often than it may be restarted."""
