"""Replica registry, admission, session records, journals and checkpoints: the only package that speaks to Redis."""

from __future__ import annotations

from session_store.admission import Quarantined, Reserved
from session_store.errors import (
    AtCapacity,
    LimitExceeded,
    ReservationLost,
    SequenceConflict,
    SessionClosed,
    SessionExists,
    SessionMissing,
    StagesUnavailable,
    StaleGeneration,
    StoreError,
    StoreUnavailable,
    TenantLimit,
)
from session_store.journal import Entry
from session_store.placement import Placement
from session_store.record import Record, Stored
from session_store.records import Commit, Committed, Lease
from session_store.registry import Gateway, Orphan, Replica, ReplicaBeat, StageLoad, StageOffer
from session_store.settings import StoreSettings
from session_store.store import Store

__all__ = [
    "AtCapacity",
    "Commit",
    "Committed",
    "Entry",
    "Gateway",
    "Lease",
    "LimitExceeded",
    "Orphan",
    "Placement",
    "Quarantined",
    "Record",
    "Replica",
    "ReplicaBeat",
    "ReservationLost",
    "Reserved",
    "SequenceConflict",
    "SessionClosed",
    "SessionExists",
    "SessionMissing",
    "StageLoad",
    "StageOffer",
    "StagesUnavailable",
    "StaleGeneration",
    "Store",
    "StoreError",
    "StoreSettings",
    "StoreUnavailable",
    "Stored",
    "TenantLimit",
]
