"""The commit log of one session over the store. A store that does not take a commit costs durability, never the conversation."""

from __future__ import annotations

import time

import structlog

from session_store import Commit, Store
from session_store.errors import SessionClosed, SessionExists, SessionMissing, StaleGeneration, StoreError

from . import metrics
from .actor import JournalEntry, StaleLease
from .conversation.checkpoint import Checkpoint
from .opening import Opened, Opener

log = structlog.get_logger()
RETRY_S = 1.0


class StoreLog:
    """Commits under the session's lease. After a failure it waits, then starts a new journal with a full checkpoint."""

    def __init__(self, store: Store, opener: Opener, opened: Opened) -> None:
        self._store, self._opener, self._opened = store, opener, opened
        self._replace = False
        self._retry_at = 0.0

    async def commit(self, first_seq: int, entries: list[JournalEntry], checkpoint: Checkpoint) -> bool:
        if time.monotonic() < self._retry_at:
            metrics.UNDURABLE.inc()
            return False
        lease = self._opened.lease
        try:
            await self._store.records.commit(Commit(lease, first_seq, entries, checkpoint.hot, checkpoint.fields, replace=self._replace))
        except (StaleGeneration, SessionClosed) as lost:
            if lease == self._opened.lease:
                raise StaleLease from lost
            self._failed(lost)
            return False
        except StoreError as failure:
            self._failed(failure)
            if isinstance(failure, SessionMissing):
                await self._record_again()
            return False
        self._replace = False
        return True

    def _failed(self, failure: StoreError) -> None:
        log.warning("commit not durable", session=self._opened.session_id, why=type(failure).__name__)
        metrics.UNDURABLE.inc()
        self._replace, self._retry_at = True, time.monotonic() + RETRY_S

    async def _record_again(self) -> None:
        """The store lost its data: nobody else has the session, so it stays ours, and the next commit is durable again."""
        try:
            await self._opener.record_again(self._opened)
        except (SessionExists, SessionClosed) as lost:
            raise StaleLease from lost
        except StoreError:
            return
        self._retry_at = 0.0
