"""All live sessions of one gateway: opened, run and closed here; the lease beat and the drain are theirs together."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable

import structlog

from session_store import Store
from session_store.errors import SessionClosed, SessionExists, StoreError

from . import metrics
from .actor import Actor, Ending
from .conversation import commands
from .conversation.config import SemanticVad, ServerVad, SessionConfig, TurnDetection
from .conversation.errors import Refusal
from .conversation.session import Conversation
from .durable import StoreLog
from .graph import Graph, Profile
from .opening import Opened, Opener, OpenRefused
from .outbound import Outbound
from .settings import Settings
from .stages import StagePool
from .wire import openai_ga

log = structlog.get_logger()


class Hub:
    def __init__(self, settings: Settings, profile: Profile, store: Store) -> None:
        self.settings, self.profile = settings, profile
        self.gateway_id = f"gw_{uuid.uuid4().hex}"
        self.draining = False
        self.graph = Graph(profile)
        self._store, self._pool = store, StagePool()
        self._opener = Opener(store, self._pool, self.graph, profile.name, self.gateway_id, settings)
        self._sessions: dict[str, tuple[Opened, Actor]] = {}
        self._opening = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._beating: asyncio.Task[None] | None = None

    async def start(self, address: str) -> None:
        await self._store.registry.beat_gateway(self.gateway_id, address)
        self._beating = asyncio.create_task(self._beat(address), name="gateway beat")

    async def stop(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        with contextlib.suppress(StoreError):
            await self._store.registry.remove_gateway(self.gateway_id)
        await self._pool.close()
        await self._store.close()

    def session_config(self) -> SessionConfig:
        """What a session is until its client says otherwise."""
        session = self.profile.session
        return SessionConfig(
            model=self.profile.model,
            instructions=self.profile.instructions,
            output_modalities=(session.output_modality,),
            turn_detection=_turn_detection(self.profile),
            voice=session.voice,
        )

    async def open(self, tenant: str) -> tuple[Opened, SessionConfig]:
        """A session's slots and stages, before the upgrade. Raises OpenRefused."""
        if self.draining:
            raise OpenRefused(Refusal("server_draining"))
        self._opening += 1
        self._idle.clear()
        try:
            config = self.session_config()
            return await self._opener.open(tenant, config), config
        finally:
            self._opening -= 1
            self._settle_idle()

    async def abandon(self, opened: Opened) -> None:
        """The client went away before its session began."""
        await asyncio.shield(self._opener.close(opened, "upgrade_failed"))

    async def converse(
        self, opened: Opened, config: SessionConfig, write: Callable[[str], Awaitable[None]], began: Callable[[Actor], None]
    ) -> Ending:
        """Run the session to its end; its slots are free when this returns."""
        settings, limits = self.settings, self.settings.core_limits(self.profile)
        conversation = Conversation(opened.session_id, config, self.graph, limits)
        view = openai_ga.SessionView(opened.session_id, expires_at=int(time.time()) + limits.max_session_ms // 1000)
        actor = Actor(
            conversation,
            opened.links,
            StoreLog(self._store, self._opener, opened),
            lambda event, seq: openai_ga.render(event, seq, view),
            Outbound(settings.max_output_bytes),
        )
        for link in opened.links.values():
            link.listen(actor.put)
        self._sessions[opened.session_id] = (opened, actor)
        self._idle.clear()
        metrics.SESSIONS.set(len(self._sessions))
        actor.put(commands.Start())
        if self.draining:
            actor.put(commands.Drain())
        began(actor)
        ending = Ending(1011, "internal_error")
        try:
            ending = await actor.run(write)
            return ending
        finally:
            metrics.CLOSES.labels(ending.reason).inc()
            await asyncio.shield(self._close(opened, ending))

    async def _close(self, opened: Opened, ending: Ending) -> None:
        try:
            await self._opener.close(opened, ending.reason)
        finally:
            self._sessions.pop(opened.session_id, None)
            metrics.SESSIONS.set(len(self._sessions))
            self._settle_idle()

    def _settle_idle(self) -> None:
        if not self._sessions and not self._opening:
            self._idle.set()

    async def drain(self) -> None:
        """Take no one new, end each session at its next quiet point, and the rest after the bound."""
        self.draining = True
        for _, actor in list(self._sessions.values()):
            actor.put(commands.Drain())
        try:
            async with asyncio.timeout(self.settings.drain_timeout_ms / 1000):
                await self._idle.wait()
        except TimeoutError:
            for _, actor in list(self._sessions.values()):
                actor.end(1012, "server_draining")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.close_timeout_ms / 1000 + 1):
                    await self._idle.wait()

    async def _beat(self, address: str) -> None:
        while True:
            await asyncio.sleep(self.settings.gateway_beat_s)
            try:
                await self._store.registry.beat_gateway(self.gateway_id, address)
                if await self._store.registry.mute_ms():
                    await self._record_again()
                held = [(opened, opened.lease, actor) for opened, actor in self._sessions.values()]
                lost = await self._store.records.renew(self.gateway_id, [lease for _, lease, _ in held])
            except StoreError as failure:
                log.warning("beat not taken", why=type(failure).__name__)
                continue
            for opened, lease, actor in held:
                if opened.session_id in lost and opened.lease == lease:
                    actor.end(1006, "stale_lease")

    async def _record_again(self) -> None:
        """The store was away, perhaps with all it knew. Sessions that it forgot must be known again before anything is reaped."""
        for opened, actor in list(self._sessions.values()):
            if opened.session_id not in self._sessions:
                continue
            try:
                await self._opener.record_again(opened)
            except (SessionExists, SessionClosed):
                actor.end(1006, "stale_lease")


def _turn_detection(profile: Profile) -> TurnDetection | None:
    defaults = profile.session.turn_detection
    if defaults is None:
        return None
    values = defaults.model_dump(exclude={"type"})
    return ServerVad(**values) if defaults.type == "server_vad" else SemanticVad(**values)
