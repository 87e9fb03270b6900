"""The commit log of one session over the store. A store that does not answer costs durability, never the conversation."""

from __future__ import annotations

import time

import structlog

from session_store import Commit, Lease, Store
from session_store.errors import SequenceConflict, SessionClosed, SessionMissing, StaleGeneration, StoreUnavailable

from . import metrics
from .actor import JournalEntry, StaleLease
from .conversation.checkpoint import Checkpoint

log = structlog.get_logger()
RETRY_S = 1.0


class StoreLog:
    """Commits under one lease. After a failure it waits before it tries again, then starts a new journal with a full checkpoint."""

    def __init__(self, store: Store, lease: Lease) -> None:
        self._store, self.lease = store, lease
        self._replace = False
        self._retry_at = 0.0

    async def commit(self, first_seq: int, entries: list[JournalEntry], checkpoint: Checkpoint) -> bool:
        if time.monotonic() < self._retry_at:
            metrics.UNDURABLE.inc()
            return False
        request = Commit(self.lease, first_seq, entries, checkpoint.hot, checkpoint.fields, replace=self._replace)
        try:
            await self._store.records.commit(request)
        except (StaleGeneration, SessionClosed) as lost:
            raise StaleLease from lost
        except (StoreUnavailable, SequenceConflict, SessionMissing) as failure:
            log.warning("commit not durable", session=self.lease.session_id, why=type(failure).__name__)
            metrics.UNDURABLE.inc()
            self._replace, self._retry_at = True, time.monotonic() + RETRY_S
            return False
        self._replace = False
        return True
