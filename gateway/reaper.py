"""Ends sessions that nobody holds: past their grace, idle for too long, or left by a gateway that died. A takeover that closes."""

from __future__ import annotations

import asyncio
import uuid

import structlog

from session_store import Store
from session_store.errors import StoreError

from . import metrics
from .opening import Opened, Opener
from .settings import Settings

log = structlog.get_logger()


class Reaper:
    def __init__(self, store: Store, opener: Opener, gateway_id: str, settings: Settings) -> None:
        self._store, self._opener, self._gateway_id, self._settings = store, opener, gateway_id, settings

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._settings.reap_interval_s)
            try:
                for session_id in await self._store.records.reapable():
                    await self._reap(session_id)
            except StoreError as failure:
                log.warning("reaper did not reach the store", why=type(failure).__name__)

    async def _reap(self, session_id: str) -> None:
        """One of many gateways gets the session; its stages are fenced by the higher attachment, freed, and only then is it over."""
        reaped = await self._store.records.reap(session_id, self._gateway_id, uuid.uuid4().hex)
        if reaped is None:
            return
        log.info("reaped", session=session_id, reason=reaped.reason)
        metrics.REAPED.inc()
        opened = Opened(session_id, "", reaped.lease, reaped.lease.attachment, {}, reaped.placements, "")
        opened.links.update({stage: self._opener.link(opened, stage, 0) for stage in opened.placements})
        await self._opener.free(session_id, opened.links, reaped.reason)
        await self._store.records.close(reaped.lease, reaped.reason)
