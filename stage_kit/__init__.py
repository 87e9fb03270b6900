"""What every stage service is built on: an engine is a small class, a service is a `__main__` and its engines."""

from __future__ import annotations

from stage_kit.engine import Append, Card, Engine, InvalidConfig, Label, RemoteEngine, Samples, SessionOver, StepFailed, Wait
from stage_kit.service import Service, serve
from stage_kit.settings import Settings
from stage_kit.slot import Slot

__all__ = [
    "Append",
    "Card",
    "Engine",
    "InvalidConfig",
    "Label",
    "RemoteEngine",
    "Samples",
    "Service",
    "SessionOver",
    "Settings",
    "Slot",
    "StepFailed",
    "Wait",
    "serve",
]
