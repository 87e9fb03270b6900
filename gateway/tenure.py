"""How long this process may act for its sessions without asking the store again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from session_store.errors import StoreError

from . import metrics

log = structlog.get_logger()
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Runs on while the machine sleeps, where it is to be had."""
RETRY_S = 0.1


class Tenure:
    """A deadline of its own for whoever writes to a client or a stage: past it, this process was frozen, and nothing is its own until
    the store says so. `renew` asks the store for all leases, and deals with those that are lost."""

    def __init__(self, renew: Callable[[], Awaitable[None]], lease_ttl_ms: int, margin_ms: int) -> None:
        """Raises ValueError when the margin leaves nothing of the lease."""
        if margin_ms >= lease_ttl_ms:
            raise ValueError(f"lease_margin_ms ({margin_ms}) must be less than lease_ttl_ms ({lease_ttl_ms})")
        self._renew, self._span_s = renew, (lease_ttl_ms - margin_ms) / 1000
        self._until = self.now() + self._span_s
        self._asking: asyncio.Task[None] | None = None

    @staticmethod
    def now() -> float:
        """Seconds of a clock that does not stand still while this process or its machine does."""
        return time.clock_gettime(_CLOCK)

    def holds(self) -> bool:
        return time.clock_gettime(_CLOCK) < self._until

    def renewed(self, asked_at: float) -> None:
        """The store confirmed what it was asked at `asked_at` (see `now`)."""
        self._until = max(self._until, asked_at + self._span_s)

    def unanswered(self, asked_at: float) -> None:
        """The store is away, so nobody can take anything over; but one who slept cannot tell since when."""
        if self.holds():
            self.renewed(asked_at)

    async def confirmed(self) -> None:
        """Returns once the store has judged the leases again, however long that takes. What was lost has been told so by then."""
        while not self.holds():
            if self._asking is None:
                metrics.TENURES_LAPSED.inc()
                log.warning("this process stood still: the store is asked before anything is said")
                self._asking = asyncio.create_task(self._ask(), name="confirm leases")
            await asyncio.shield(self._asking)

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self) -> None:
        try:
            while not self.holds():
                try:
                    await self._renew()
                except StoreError:
                    await asyncio.sleep(RETRY_S)
        finally:
            self._asking = None
