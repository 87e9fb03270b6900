"""The replica's entry in the registry: a beat every second with what it really holds. Only this file imports the store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from prometheus_client import Gauge

from stage_kit.host import Host
from stage_kit.logs import describe, logger

if TYPE_CHECKING:
    from session_store import Store

# enough to read the record without its journal
_PAST_ANY_SEQ = 2**53


class Registration:
    """Keeps the registry right as long as `run` runs; a store that is away is tried again at every beat."""

    def __init__(
        self, url: str, service: str, replica_id: str, address: str, hosts: Mapping[str, Host], period_s: float, registered: Gauge
    ) -> None:
        """`registered`: shows whether the last beat was taken."""
        self._url = url
        self._service = service
        self._replica_id = replica_id
        self._address = address
        self._hosts = hosts
        self._period_s = period_s
        self._registered = registered
        self._store: Store | None = None
        self._reachable = True
        self._log = logger(replica_id=replica_id)

    async def run(self) -> None:
        """Beats until cancelled."""
        while True:
            await self.beat()
            await asyncio.sleep(self._period_s)

    async def beat(self) -> None:
        """One beat; frees what the store says nobody owns. An unreachable store is logged once and changes nothing here."""
        from session_store import ReplicaBeat, StageOffer, Store, StoreUnavailable

        offers = tuple(
            StageOffer(
                stage=host.card.stage,
                slots=host.card.slots,
                kv_bytes=host.card.kv_bytes,
                kv_per_session=host.card.kv_bytes_per_session,
                model=host.card.model,
                held=tuple(sorted({session.session_id for session in host.held()})),
            )
            for host in self._hosts.values()
        )
        draining = any(host.draining for host in self._hosts.values())
        try:
            if self._store is None:
                self._store = await Store.open(self._url)
            orphans = await self._store.registry.beat(ReplicaBeat(self._replica_id, self._service, self._address, offers, draining))
        except StoreUnavailable as error:
            if self._reachable:
                self._log.warning("registry unreachable", error=describe(error))
            self._reachable = False
            self._registered.set(0)
            return
        if not self._reachable:
            self._log.info("registry reachable again")
        self._reachable = True
        self._registered.set(1)
        for orphan in orphans:
            self._hosts[orphan.stage].free(orphan.session_id, "orphan")

    async def lives(self, session_id: str) -> bool:
        """False when the store knows that the session is over, or knows no such session. An outage kills nobody."""
        from session_store import SessionMissing, StoreUnavailable

        if self._store is None:
            return True
        try:
            stored = await self._store.records.load(session_id, _PAST_ANY_SEQ)
        except SessionMissing:
            return False
        except StoreUnavailable:
            return True
        return stored.record.state not in ("closing", "closed")

    async def leave(self) -> None:
        """Takes the replica out of the registry."""
        from session_store import StoreUnavailable

        if self._store is None:
            return
        try:
            await self._store.registry.remove(self._replica_id)
        except StoreUnavailable as error:
            self._log.warning("could not leave the registry", error=describe(error))
        await self._store.close()
