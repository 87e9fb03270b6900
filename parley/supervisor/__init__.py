"""The local supervisor: an embedded store, the stage services and the gateway as child processes of one command."""

from __future__ import annotations

from .child import Child
from .errors import BusyPort, MissingBinary, NoSuchCard, NotReady, ServiceDied, ServiceLost, SupervisorError
from .folder import RunFolder
from .machine import Machine, look
from .placement import CPU, Placement, place
from .plan import Plan, ServiceSpec, SharedCard, devices, embedded_plan, find_profile
from .port import check_port
from .settings import SupervisorSettings
from .supervisor import Reporter, Supervisor

__all__ = [
    "CPU",
    "BusyPort",
    "Child",
    "Machine",
    "MissingBinary",
    "NoSuchCard",
    "NotReady",
    "Placement",
    "Plan",
    "Reporter",
    "RunFolder",
    "ServiceDied",
    "ServiceLost",
    "ServiceSpec",
    "SharedCard",
    "Supervisor",
    "SupervisorError",
    "SupervisorSettings",
    "check_port",
    "devices",
    "embedded_plan",
    "find_profile",
    "look",
    "place",
]
