"""The local supervisor: an embedded store, the stage services and the gateway as child processes of one command."""

from __future__ import annotations

from .child import Child
from .errors import BusyPort, MissingBinary, NotReady, ServiceDied, ServiceLost, SupervisorError
from .folder import RunFolder
from .plan import Plan, ServiceSpec, embedded_plan, find_profile
from .port import check_port
from .settings import SupervisorSettings
from .supervisor import Reporter, Supervisor

__all__ = [
    "BusyPort",
    "Child",
    "MissingBinary",
    "NotReady",
    "Plan",
    "Reporter",
    "RunFolder",
    "ServiceDied",
    "ServiceLost",
    "ServiceSpec",
    "Supervisor",
    "SupervisorError",
    "SupervisorSettings",
    "check_port",
    "embedded_plan",
    "find_profile",
]
