"""Opening and closing a session as a whole: slots, stages, record. All of it or nothing, and every step undone in reverse."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass

import structlog
from parley_stage.v1 import stage_pb2 as pb

from session_store import Lease, Reserved, Store
from session_store.errors import AtCapacity, ReservationLost, StagesUnavailable, StoreError, StoreUnavailable, TenantLimit

from . import metrics, translate
from .conversation.config import SessionConfig
from .conversation.errors import Refusal
from .conversation.policy import stage_config_json
from .graph import Graph
from .settings import Settings
from .stages import CONTRACT_VERSION, StageLink, StagePool, StageRefused

log = structlog.get_logger()


class OpenRefused(Exception):
    """No session: the refusal to answer the upgrade with, and when to try again."""

    def __init__(self, refusal: Refusal, retry_after_ms: int = 1000) -> None:
        super().__init__(refusal.code)
        self.refusal, self.retry_after_ms = refusal, retry_after_ms


@dataclass(slots=True)
class Opened:
    """A session that holds its slots, stages and record. The lease is a new one after a store that lost its data was told again."""

    session_id: str
    holder_id: str
    tenant: str
    lease: Lease
    links: dict[str, StageLink]
    placements: Reserved


class Opener:
    def __init__(self, store: Store, pool: StagePool, graph: Graph, profile: str, gateway_id: str, settings: Settings) -> None:
        self._store, self._pool, self._graph = store, pool, graph
        self._profile, self._gateway_id, self._settings = profile, gateway_id, settings

    async def open(self, tenant: str, config: SessionConfig) -> Opened:
        """Reserve, open all stages at once, create the record, confirm. Raises OpenRefused and leaves nothing behind."""
        started = time.perf_counter()
        session_id, holder_id = f"sess_{uuid.uuid4().hex}", uuid.uuid4().hex
        reserved = await self._reserve(session_id, tenant)
        links: dict[str, StageLink] = {}
        try:
            await self._open_stages(session_id, holder_id, reserved, config, links)
            lease = await self._store.records.create(
                session_id, self._gateway_id, holder_id, tenant, self._profile, reserved.placements
            )  # fmt: skip
            await self._store.admission.confirm(session_id)
        except BaseException as failure:
            await asyncio.shield(self._undo(session_id, links))
            if isinstance(failure, (StageRefused, StoreError)):
                raise OpenRefused(_refusal(failure)) from failure
            raise
        metrics.OPEN_SECONDS.observe(time.perf_counter() - started)
        return Opened(session_id, holder_id, tenant, lease, links, reserved)

    async def record_again(self, opened: Opened) -> None:
        """Tell a store that lost its data of this session; nothing happens when it knows. Raises StoreError."""
        opened.lease = await self._store.records.create(
            opened.session_id, self._gateway_id, opened.holder_id, opened.tenant, self._profile, opened.placements.placements
        )  # fmt: skip

    async def _reserve(self, session_id: str, tenant: str) -> Reserved:
        try:
            return await self._store.admission.reserve(session_id, tenant, self._graph.stages, self._settings.tenant_max_sessions)
        except (AtCapacity, TenantLimit) as full:
            raise OpenRefused(_refusal(full), full.retry_after_ms) from full
        except StoreError as failure:
            raise OpenRefused(_refusal(failure)) from failure

    async def _open_stages(
        self, session_id: str, holder_id: str, reserved: Reserved, config: SessionConfig, links: dict[str, StageLink]
    ) -> None:
        """All stages in parallel; the first refusal wins once every answer is in, so that nothing opens unnoticed."""
        attachment = max(p.placement for p in reserved.placements.values())
        for stage, placement in reserved.placements.items():
            authority = pb.Authority(
                session_id=session_id, placement=placement.placement, attachment=attachment, holder_id=holder_id
            )  # fmt: skip
            links[stage] = StageLink(stage, self._pool.stub(placement.address), authority)
        timeout = self._settings.open_timeout_ms / 1000
        answers = await asyncio.gather(
            *(link.open(self._opening(stage, config), timeout) for stage, link in links.items()), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    def _opening(self, stage: str, config: SessionConfig) -> pb.Open:
        opening = pb.Open(
            stage=stage,
            contract_version=CONTRACT_VERSION,
            config_json=stage_config_json(stage, config),
            edges=self._graph.edges(stage),
        )
        if stage in self._graph.readers("client", "audio"):
            opening.input_format.CopyFrom(translate.audio_format(config.input_format))
        if stage == self._graph.audio_stage:
            opening.output_format.CopyFrom(translate.audio_format(config.output_format))
        return opening

    async def _undo(self, session_id: str, links: dict[str, StageLink]) -> None:
        """Free what a failed opening holds; the store forgets an unconfirmed reservation by itself if it cannot be reached."""
        await self.free(session_id, links, "open_failed")

    async def close(self, opened: Opened, reason: str) -> None:
        """End the session: stages first, then the record, then the slots that the stages confirmed."""
        try:
            await self._store.records.close(opened.lease, reason)
        except StoreError as failure:
            log.warning("record not closed", session=opened.session_id, why=type(failure).__name__)
        await self.free(opened.session_id, opened.links, reason)

    async def free(self, session_id: str, links: dict[str, StageLink], reason: str) -> None:
        """Slots go back only as far as stages confirm; the others are quarantined and shown."""
        timeout = self._settings.close_timeout_ms / 1000
        names = list(links)
        confirmed = await asyncio.gather(*(links[name].close(reason, timeout) for name in names))
        freed = [name for name, ok in zip(names, confirmed, strict=True) if ok]
        try:
            await self._store.admission.release(session_id, freed if links else None)
            for name in set(names) - set(freed):
                log.error("slot not confirmed free", session=session_id, stage=name)
                await self._store.admission.quarantine(session_id, name)
        except StoreError as failure:
            log.warning("slots not released", session=session_id, why=type(failure).__name__)


def _refusal(failure: Exception) -> Refusal:
    match failure:
        case AtCapacity():
            return Refusal("at_capacity", None, retry_after_s=max(1, -(-failure.retry_after_ms // 1000)))
        case TenantLimit():
            return Refusal("tenant_limit", None, retry_after_s=max(1, -(-failure.retry_after_ms // 1000)))
        case StagesUnavailable():
            return Refusal("stages_unavailable", None, stage=failure.stage)
        case StageRefused(code="RESOURCE_EXHAUSTED"):
            return Refusal("at_capacity", None, retry_after_s=1)
        case StageRefused():
            return Refusal("stages_unavailable", None, stage=failure.stage)
        case ReservationLost():
            return Refusal("at_capacity", None, retry_after_s=1)
        case StoreUnavailable():
            return Refusal("stages_unavailable", None, stage="session store")
        case _:
            return Refusal("internal_error")
