"""The wait of one session for its slots, as operators see it."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType

from session_store.errors import AtCapacity, StagesUnavailable, TenantLimit

from . import metrics


class Queueing:
    """Around a reservation: who gets its slots at once is not counted, who waits is, until it is admitted, refused, or gone."""

    def __init__(self) -> None:
        self._since: float | None = None

    def __enter__(self) -> Queueing:
        return self

    def position(self, place: int) -> None:
        """It waits, at this place from 1."""
        if self._since is None:
            self._since = time.perf_counter()
            metrics.SESSIONS_QUEUED.inc()

    def __exit__(self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None) -> None:
        if self._since is None:
            return
        metrics.SESSIONS_QUEUED.dec()
        metrics.QUEUE_SECONDS.labels(_outcome(failure)).observe(time.perf_counter() - self._since)


def _outcome(failure: BaseException | None) -> str:
    match failure:
        case None:
            return "admitted"
        case AtCapacity() | TenantLimit() | StagesUnavailable():
            return "refused"
        case asyncio.CancelledError():
            return "left"
        case _:
            return "failed"
