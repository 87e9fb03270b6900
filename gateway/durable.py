"""The commit log of one session over the store. A store that does not take a commit costs durability, never the conversation."""

from __future__ import annotations

import time

import structlog

from session_store import Commit, Store
from session_store.errors import LeaseForgotten, SessionClosed, SessionMissing, StaleGeneration, StoreError, StoreUnavailable

from . import metrics
from .actor import JournalEntry, StaleLease
from .conversation.checkpoint import Checkpoint
from .opening import Opened, Opener

log = structlog.get_logger()
RETRY_S = 1.0
STALLED_S = 0.25
"""A commit that outlasted the store's own timeout by so much found this process asleep: somebody may have the session by now."""


class StoreLog:
    """Commits under the session's lease. After a failure it waits, then starts a new journal with a full checkpoint."""

    def __init__(self, store: Store, opener: Opener, opened: Opened, limit_s: float) -> None:
        self._store, self._opener, self._opened = store, opener, opened
        self._replace = False
        self._number = 0
        """Commits made so far: the store writes each once, even if it is asked twice."""
        self._retry_at = 0.0
        self._limit_s = limit_s
        self._undurable_since: float | None = None

    @property
    def overdue(self) -> bool:
        """The store was away for longer than a session may go on without it."""
        return self._undurable_since is not None and time.monotonic() - self._undurable_since > self._limit_s

    async def commit(self, first_seq: int, entries: list[JournalEntry], checkpoint: Checkpoint, acked_seq: int) -> bool:
        if time.monotonic() < self._retry_at:
            metrics.UNDURABLE.inc()
            return False
        self._number += 1
        commit = Commit(
            self._opened.lease,
            first_seq,
            entries,
            checkpoint.hot,
            checkpoint.fields,
            acked_seq=acked_seq,
            replace=self._replace,
            placements=self._opened.take_moved(),
            number=self._number,
        )
        metrics.JOURNAL_BYTES.observe(_size(entries, checkpoint))
        try:
            await self._write(commit)
        except (LeaseForgotten, SessionMissing) as forgotten:
            self._failed(forgotten)
            await self._record_again()
            return False
        except (StaleGeneration, SessionClosed) as lost:
            metrics.FENCED.labels("store").inc()
            raise StaleLease(isinstance(lost, SessionClosed)) from lost
        except StoreError as failure:
            self._failed(failure)
            return False
        self._replace, self._undurable_since = self._replace and not commit.replace, None
        self._opened.committed = commit.number
        return True

    def begin_anew(self) -> None:
        """The store knows nothing of the session but its record: the next commit writes a full checkpoint and a new journal."""
        self._replace, self._retry_at = True, 0.0

    async def _write(self, commit: Commit) -> None:
        started = time.monotonic()
        try:
            await self._store.records.commit(commit)
        except StoreUnavailable:
            if time.monotonic() - started < self._store.settings.redis_timeout_ms / 1000 + STALLED_S:
                raise
            await self._store.records.commit(commit)

    def _failed(self, failure: StoreError) -> None:
        log.warning("commit not durable", session=self._opened.session_id, why=type(failure).__name__)
        metrics.UNDURABLE.inc()
        now = time.monotonic()
        self._replace, self._retry_at = True, now + RETRY_S
        self._undurable_since = self._undurable_since or now
        self._opened.moved = True  # where the stages are may not have been written, either

    async def _record_again(self) -> None:
        """The store lost its data: nobody else has the session, so it stays ours, and the next commit is durable again."""
        try:
            await self._opener.record_again(self._opened)
        except (StaleGeneration, SessionClosed) as lost:
            raise StaleLease(isinstance(lost, SessionClosed)) from lost
        except StoreError:
            return
        self._retry_at = 0.0


def _size(entries: list[JournalEntry], checkpoint: Checkpoint) -> int:
    fields = sum(len(value) for value in checkpoint.fields.values() if value is not None)
    return len(checkpoint.hot) + fields + sum(len(head) + len(body) for head, body in entries)
