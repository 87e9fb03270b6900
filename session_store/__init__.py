"""Replica registry, admission, session records, journals and checkpoints: the only package that speaks to Redis."""

from __future__ import annotations

from session_store.admission import Quarantined, Reserved
from session_store.api_keys import ApiKey
from session_store.client_secrets import ClientSecret
from session_store.commit import Commit, Committed
from session_store.errors import (
    AtCapacity,
    InvalidToken,
    KeyTaken,
    LeaseForgotten,
    LimitExceeded,
    NoCheckpoint,
    ReplayGap,
    ReservationLost,
    SequenceConflict,
    SessionClosed,
    SessionExists,
    SessionExpired,
    SessionMissing,
    StagesUnavailable,
    StaleGeneration,
    StoreError,
    StoreUnavailable,
    TenantLimit,
)
from session_store.journal import Entry
from session_store.lease import Lease, Renewed
from session_store.placement import Placement
from session_store.record import Record, Stored
from session_store.registry import Gateway, Orphan, Replica, ReplicaBeat, StageLoad, StageOffer
from session_store.settings import StoreSettings
from session_store.store import Store
from session_store.takeover import Reaped, TakenOver

__all__ = [
    "ApiKey",
    "AtCapacity",
    "ClientSecret",
    "Commit",
    "Committed",
    "Entry",
    "Gateway",
    "InvalidToken",
    "KeyTaken",
    "Lease",
    "LeaseForgotten",
    "LimitExceeded",
    "NoCheckpoint",
    "Orphan",
    "Placement",
    "Quarantined",
    "Reaped",
    "Record",
    "Renewed",
    "ReplayGap",
    "Replica",
    "ReplicaBeat",
    "ReservationLost",
    "Reserved",
    "SequenceConflict",
    "SessionClosed",
    "SessionExists",
    "SessionExpired",
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
    "TakenOver",
    "TenantLimit",
]
