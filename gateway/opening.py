"""Opening and closing a session as a whole: slots, stages, record. All of it or nothing, and every step undone in reverse."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from parley_stage.v1 import stage_pb2 as pb

from session_store import Lease, Placement, Reserved, Store
from session_store.errors import AtCapacity, ReservationLost, StagesUnavailable, StoreError, StoreUnavailable, TenantLimit
from session_store.tokens import digest, new_token

from . import metrics, translate
from .access.principal import Principal
from .conversation.config import SessionConfig
from .conversation.effects import Replace
from .conversation.errors import Refusal
from .conversation.policy import stage_config_json
from .conversation.recap import Recap
from .graph import Graph
from .pool import StagePool
from .queueing import Queueing
from .settings import Settings
from .stages import CONTRACT_VERSION, StageLink, StageRefused

log = structlog.get_logger()
PAST_ANY_SEQ = 2**53


PLACES_TRIED = 3
"""Replicas that are asked for a slot before a stage counts as not there."""


class OpenRefused(Exception):
    """No session: the refusal to answer the upgrade with, and when to try again."""

    def __init__(self, refusal: Refusal, retry_after_ms: int = 1000, replica_id: str = "") -> None:
        """`replica_id`: the replica that is not there or takes nobody, where another one might."""
        super().__init__(refusal.code)
        self.refusal, self.retry_after_ms, self.replica_id = refusal, retry_after_ms, replica_id


@dataclass(slots=True)
class Opened:
    """A session that holds its slots, stages and record."""

    session_id: str
    tenant: str
    lease: Lease
    attachment: int
    """What stages know: at most the lease's, which was made after they were opened."""
    links: dict[str, StageLink]
    placements: dict[str, Placement]
    token: str = field(repr=False)
    """What the client may resume with; the store has its digest."""
    moved: bool = False
    key_id: str = ""
    """Of the key it was opened or resumed with last."""
    committed: int = 0
    """Number of the lease's newest commit that the store has taken."""

    def take_moved(self) -> dict[str, Placement] | None:
        """The placements, if they changed since they were last written."""
        moved, self.moved = self.moved, False
        return dict(self.placements) if moved else None

    def authority(self, stage: str) -> pb.Authority:
        return pb.Authority(
            session_id=self.session_id,
            placement=self.placements[stage].placement,
            attachment=self.attachment,
            holder_id=self.lease.holder_id,
        )


class Opener:
    def __init__(self, store: Store, pool: StagePool, graph: Graph, profile: str, gateway_id: str, settings: Settings) -> None:
        self._store, self._pool, self._graph = store, pool, graph
        self._profile, self._gateway_id, self._settings = profile, gateway_id, settings
        self._working: set[asyncio.Task[None]] = set()

    async def open(self, who: Principal, config: SessionConfig) -> Opened:
        """Reserve, open all stages at once, create the record, confirm. Raises OpenRefused and leaves nothing behind.

        The registry may still name a replica that died a moment ago: then another is tried.
        """
        avoid, ends = set[str](), time.monotonic() + self._settings.open_timeout_ms / 1000
        while True:
            try:
                return await self._open_once(who, config, avoid)
            except OpenRefused as refused:
                if not refused.replica_id or len(avoid) + 1 >= PLACES_TRIED or time.monotonic() >= ends:
                    raise
                avoid.add(refused.replica_id)

    async def _open_once(self, who: Principal, config: SessionConfig, avoid: Collection[str]) -> Opened:
        """Cancelled, it gives back what it took: what is on its way to a stage cannot be called back, so it is let arrive first."""
        started = time.perf_counter()
        session_id, holder_id, token = f"sess_{uuid.uuid4().hex}", uuid.uuid4().hex, new_token()
        placements = (await self._reserve(session_id, who, avoid)).placements
        attachment = max(placement.placement for placement in placements.values())
        opened = Opened(
            session_id, who.tenant, Lease(session_id, attachment, holder_id), attachment, {}, placements, token, key_id=who.key_id
        )
        opening = self._in_background(self._open_reserved(opened, config))
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(lambda _: self._in_background(self._open_in_vain(opening, opened)))
            raise
        metrics.OPEN_SECONDS.observe(time.perf_counter() - started)
        return opened

    async def _open_reserved(self, opened: Opened, config: SessionConfig) -> None:
        try:
            await self._open_stages(opened, config)
            opened.lease = await self._store.records.create(
                opened.session_id,
                self._gateway_id,
                opened.lease.holder_id,
                opened.tenant,
                self._profile,
                opened.placements,
                token_digest=digest(opened.token),
            )
            await self._store.admission.confirm(opened.session_id)
        except (StageRefused, StoreError) as failure:
            await self.free(opened.session_id, opened.links, "open_failed")
            with contextlib.suppress(StoreError):
                await self._store.records.close(opened.lease, "open_failed")
            elsewhere = opened.placements[failure.stage].replica_id if isinstance(failure, StageRefused) and failure.elsewhere else ""
            raise OpenRefused(_refusal(failure), replica_id=elsewhere) from failure

    async def _open_in_vain(self, opening: asyncio.Future[None], opened: Opened) -> None:
        if not opening.cancelled() and opening.exception() is None:
            await self.close(opened, "upgrade_failed")

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        return task

    async def settled(self) -> None:
        """Until nothing that was cancelled is still being undone."""
        while self._working:
            await asyncio.wait(self._working)

    async def record_again(self, opened: Opened) -> bool:
        """Tell a store that lost data of this session; True when it has to be told all. Raises StoreError."""
        committed = opened.committed
        restored = await self._store.records.restore(
            opened.lease, self._gateway_id, opened.tenant, self._profile, opened.placements, token_digest=digest(opened.token)
        )  # fmt: skip
        stored = await self._store.records.load(opened.session_id, PAST_ANY_SEQ)
        return restored or not stored.hot or stored.record.commit_number < committed

    async def hand_over(self, opened: Opened) -> None:
        """Nobody holds the session from now on; whoever resumes it within the grace has it. Raises StoreError."""
        await self._store.records.detach(opened.lease, grace_ms=self._settings.grace_ms)

    async def reserve_elsewhere(self, opened: Opened, stage: str) -> None:
        """A place for the stage on another replica, from now on; `place_anew` takes it. Raises StoreError when there is none."""
        here = opened.placements[stage].replica_id
        await self._store.admission.reserve(opened.session_id, opened.tenant, (stage,), avoid=(here,))
        await self._store.admission.confirm(opened.session_id)

    async def stay(self, opened: Opened, stage: str, place: Placement) -> None:
        """The stage could not be placed anew after all: it is where it was."""
        opened.placements[stage] = place
        with contextlib.suppress(StoreError):
            await self._store.admission.release(opened.session_id, (stage,))

    async def place_anew(
        self, opened: Opened, effect: Replace, left: str, config: SessionConfig, base: int, recap: Recap | None = None
    ) -> StageLink:
        """Another replica than `left` for a stage, opened and readied. Raises StageRefused or StoreError; then nothing of it is held."""
        avoid, refused = [left], None
        while True:
            try:
                return await self._place(opened, effect, config, base, recap, avoid)
            except StageRefused as failure:
                if not failure.elsewhere or len(avoid) >= PLACES_TRIED:
                    raise
                avoid.append(opened.placements[effect.stage].replica_id)
                refused = failure
            except StoreError as nowhere:
                if refused is None:
                    raise
                raise refused from nowhere

    async def _place(
        self, opened: Opened, effect: Replace, config: SessionConfig, base: int, recap: Recap | None, avoid: Collection[str]
    ) -> StageLink:
        stage, wait_ms = effect.stage, self._settings.replace_wait_ms
        # only this stage: others may be on the same replica and in use
        reserved = await self._store.admission.reserve(opened.session_id, opened.tenant, (stage,), avoid=avoid, wait_ms=wait_ms)
        opened.placements[stage] = reserved.placements[stage]
        link = StageLink(stage, self._pool.replica(opened.placements[stage].address), opened.authority(stage), base)
        try:
            await link.open(self._opening(stage, config, effect.resume_after, recap), self._settings.open_timeout_ms / 1000)
            await self._store.admission.confirm(opened.session_id)
        except BaseException:
            await asyncio.shield(self._give_back(opened, link))
            raise
        opened.moved = True
        return link

    async def _give_back(self, opened: Opened, link: StageLink) -> None:
        """A place where the stage could not be opened: free as far as the stage says so, and not the session's any more."""
        free, admission = await link.close("open_failed", self._settings.close_timeout_ms / 1000), self._store.admission
        with contextlib.suppress(StoreError):
            await (admission.release(opened.session_id, (link.stage,)) if free else admission.quarantine(opened.session_id, link.stage))

    def link(self, opened: Opened, stage: str, base: int) -> StageLink:
        return StageLink(stage, self._pool.replica(opened.placements[stage].address), opened.authority(stage), base)

    async def _reserve(self, session_id: str, who: Principal, avoid: Collection[str]) -> Reserved:
        settings = self._settings
        try:
            with Queueing() as queueing:
                return await self._store.admission.reserve(
                    session_id,
                    who.tenant,
                    self._graph.stages,
                    who.tenant_max_sessions or settings.tenant_max_sessions,
                    api_key=who.key_id,
                    api_key_limit=who.max_sessions or settings.key_max_sessions,
                    avoid=avoid,
                    wait_ms=settings.queue_wait_ms,
                    on_position=queueing.position,
                )
        except (AtCapacity, TenantLimit) as full:
            raise OpenRefused(_refusal(full), full.retry_after_ms) from full
        except StoreError as failure:
            raise OpenRefused(_refusal(failure)) from failure

    async def _open_stages(self, opened: Opened, config: SessionConfig) -> None:
        """All stages in parallel; the first refusal wins once every answer is in, so that nothing opens unnoticed."""
        opened.links.update({stage: self.link(opened, stage, 0) for stage in opened.placements})
        timeout = self._settings.open_timeout_ms / 1000
        answers = await asyncio.gather(
            *(link.open(self._opening(stage, config, {}), timeout) for stage, link in opened.links.items()), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    def _opening(self, stage: str, config: SessionConfig, resume_after: Mapping[str, int], recap: Recap | None = None) -> pb.Open:
        opening = pb.Open(
            stage=stage,
            contract_version=CONTRACT_VERSION,
            config_json=stage_config_json(self._graph, stage, config, recap),
            edges=self._graph.edges(stage),
            resume_after=resume_after,
        )
        if stage in self._graph.readers("client", "audio"):
            opening.input_format.CopyFrom(translate.audio_format(config.input_format))
        if stage == self._graph.audio_stage:
            opening.output_format.CopyFrom(translate.audio_format(config.output_format))
        return opening

    async def close(self, opened: Opened, reason: str) -> None:
        """End the session in two steps: nobody may resume it from the first on, and its slots are free after the second."""
        records = self._store.records
        try:
            if not await records.begin_close(opened.lease, reason):
                await asyncio.gather(*(link.abandon() for link in opened.links.values()))
                return  # taken over or reaped: the stages are somebody else's to free
        except StoreError as failure:
            log.warning("record not closing", session=opened.session_id, why=type(failure).__name__)
        for stage in set(opened.placements) - set(opened.links):
            opened.links[stage] = self.link(opened, stage, 0)  # lost, and perhaps not placed anew: its slot is to be freed, too
        await self.free(opened.session_id, opened.links, reason)
        with contextlib.suppress(StoreError):
            await records.close(opened.lease, reason)

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
                metrics.QUARANTINED.labels(name).inc()
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
