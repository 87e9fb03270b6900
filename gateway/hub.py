"""All live sessions of one gateway: opened, resumed, run and closed here; the lease beat, the reaper and the drain are theirs together."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Iterator

import structlog

from session_store import ClientSecret, Store
from session_store.errors import SessionClosed, StaleGeneration, StoreError
from session_store.loop_lag import watch_loop

from . import crash, metrics
from .access.gate import Gate
from .access.keyring import Keyring
from .access.principal import Principal
from .actor import Actor
from .census import CENSUS, Holding
from .conversation import commands, events
from .conversation.config import SessionConfig, SessionPatch
from .conversation.errors import Refusal
from .conversation.session import Conversation
from .defaults import configured, session_config
from .durable import StoreLog
from .ending import Ending
from .graph import Graph, Profile
from .live import DETACHED, ClientGone, LiveSession, Write
from .logs import describe
from .opening import Opened, Opener, OpenRefused
from .outbound import Outbound
from .places import Places
from .pool import StagePool
from .pulse import PulseWatch
from .reaper import Reaper
from .resuming import ResumeAsk, Resumer, Taken
from .settings import Settings
from .stages import StageRefused
from .tenure import Tenure
from .wire import extension, openai_ga

log = structlog.get_logger()
GRACE_OVER = Ending(1000, "disconnect_grace_expired")
LEFT = Ending(1000, "client_closed")
GOODBYE_S = 0.2


class Hub:
    def __init__(self, settings: Settings, profile: Profile, store: Store) -> None:
        self.settings, self.profile = settings, profile
        self.gateway_id = f"gw_{uuid.uuid4().hex}"
        self.draining = False
        self.graph = Graph(profile)
        self.limits = settings.core_limits(profile)
        self._tenure = Tenure(self._renew, store.settings.lease_ttl_ms, settings.lease_margin_ms)
        self._store, self._pool = store, StagePool(settings.tls(), self._tenure)
        self.gate = Gate(settings, store, Keyring(settings, store))
        self._pulse = PulseWatch(self._pool.stub, self.gateway_id, settings.pulse_timeout_ms / 1000, settings.engine_timeout_ms / 1000)
        self._opener = Opener(store, self._pool, self.graph, profile.name, self.gateway_id, settings)
        self._resumer = Resumer(store, self._opener, self.graph, self.gateway_id, settings, self.limits)
        self._reaper = Reaper(store, self._opener, self.gateway_id, settings)
        self._sessions: dict[str, LiveSession] = {}
        self._graces: dict[str, asyncio.TimerHandle] = {}
        self._opening = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: list[asyncio.Task[None]] = []
        self._taking: set[asyncio.Task[Seat]] = set()
        metrics.prepare(self.graph.stages, profile.name, profile.model)
        CENSUS.watch(self.gateway_id, self._holding)

    def _holding(self) -> Holding:
        return Holding([session.actor.outbound for session in self._sessions.values()], self.draining)

    async def start(self, address: str) -> None:
        asked_at = self._tenure.now()
        await self._store.registry.beat_gateway(self.gateway_id, address)
        self._tenure.renewed(asked_at)
        self._tasks = [
            asyncio.create_task(self._beat(address), name="gateway beat"),
            asyncio.create_task(self._reaper.run(), name="reaper"),
            asyncio.create_task(self._look_at_keys(), name="keys"),
            asyncio.create_task(watch_loop(metrics.LOOP_LAG.observe, time.monotonic), name="loop lag"),
        ]

    async def stop(self) -> None:
        CENSUS.forget(self.gateway_id)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*self._taking, return_exceptions=True)
        await self._opener.settled()
        with contextlib.suppress(StoreError):
            await self._store.registry.remove_gateway(self.gateway_id)
        await self._pulse.close()
        await self._tenure.close()
        await self._pool.close()
        await self._store.close()

    def configured(self, patch: SessionPatch | None) -> SessionConfig:
        """What a session is that begins with this patch. Raises Refusal, as a session.update with it would be refused."""
        config = session_config(self.profile, self.graph)
        return config if patch is None else configured(config, patch, self.graph, self.limits)

    async def keep_secret(self, digest: str, stands_for: ClientSecret, ttl_s: int) -> int:
        """When it expires, in Unix seconds. Raises StoreError."""
        return await self._store.client_secrets.put(digest, stands_for, ttl_s)

    # in

    async def open(self, who: Principal, config: SessionConfig | None = None) -> Opened:
        """A session's slots and stages, before the upgrade. Raises OpenRefused."""
        if self.draining:
            raise OpenRefused(Refusal("server_draining"))
        self._opening += 1
        metrics.SESSIONS_OPENING.inc()
        self._idle.clear()
        try:
            return await self._opener.open(who, config or self.configured(None))
        except OpenRefused as refused:
            if who.patch is not None and isinstance(stage := refused.__cause__, StageRefused) and stage.code == "INVALID_ARGUMENT":
                why = f"the {stage.stage} service does not take what the client secret begins sessions with"
                raise OpenRefused(Refusal("update_refused", "session", why=why)) from stage
            raise
        finally:
            self._opening -= 1
            metrics.SESSIONS_OPENING.dec()
            self._settle_idle()

    async def abandon(self, opened: Opened) -> None:
        """The client went away before its session began."""
        await asyncio.shield(self._opener.close(opened, "upgrade_failed"))

    async def take(self, ask: ResumeAsk, who: Principal, *, extended: bool) -> Seat:
        """A session that lives on here; whoever had it before is told by the store and by every stage. Raises Refusal.

        Cancelled, the session lives on all the same, and waits for its client.
        """
        if self.draining:
            raise Refusal("server_draining")
        taking = asyncio.create_task(self._take(ask, who, extended), name=f"take {ask.session_id}")
        self._taking.add(taking)
        taking.add_done_callback(self._taking.discard)
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(self._taken_in_vain)
            raise

    async def _take(self, ask: ResumeAsk, who: Principal, extended: bool) -> Seat:
        taken = await self._resumer.take(ask, who.tenant)
        taken.opened.key_id = who.key_id
        if (before := self._sessions.get(ask.session_id)) is not None:
            if before.opened.lease.attachment > taken.opened.lease.attachment:
                await asyncio.gather(*(link.abandon() for link in taken.opened.links.values()))
                raise Refusal("session_resume_conflict")
            del self._sessions[ask.session_id]
            before.lose()
        self._cancel_grace(ask.session_id)
        metrics.TAKEOVERS.labels("taken").inc()
        metrics.RESUME_GAPS.inc(taken.gap)
        live, view = self._enliven(taken.opened, taken.conversation)
        live.actor.put(taken.resume)
        return self._seat(live, view, extended, taken)

    def _taken_in_vain(self, taking: asyncio.Task[Seat]) -> None:
        if not taking.cancelled() and taking.exception() is None:
            self.leave(taking.result())

    def begin(self, opened: Opened, config: SessionConfig | None = None, *, extended: bool) -> Seat:
        """A new session starts to live, with the configuration that it was opened with."""
        conversation = Conversation(opened.session_id, config or self.configured(None), self.graph, self.limits)
        live, view = self._enliven(opened, conversation)
        live.actor.put(commands.Start())
        return self._seat(live, view, extended, None)

    def _seat(self, session: LiveSession, view: openai_ga.SessionView, extended: bool, taken: Taken | None) -> Seat:
        """Its socket is attached before anything happens: nothing is said between the replay and the first live event."""
        seat = Seat(session, Outbound(self.settings.max_output_bytes), view, extended, taken)
        session.actor.attach(seat.outbound, seat)
        return seat

    def _enliven(self, opened: Opened, conversation: Conversation) -> tuple[LiveSession, openai_ga.SessionView]:
        left_s = (conversation.state.deadlines.get("session", self.limits.max_session_ms) - conversation.now) // 1000
        view = openai_ga.SessionView(opened.session_id, expires_at=int(time.time()) + left_s, resume_token=opened.token)
        places = Places(opened, self._opener, self._pulse, self.settings)
        actor = Actor(
            conversation,
            opened.links,
            StoreLog(self._store, self._opener, opened, self.settings.undurable_limit_ms / 1000),
            lambda event, seq: openai_ga.render(event, seq, view),
            places,
            self._tenure,
        )
        session = LiveSession(opened, actor, self._opener, places, self._tenure)
        self._sessions[opened.session_id] = session
        self._idle.clear()
        if self.draining:
            actor.put(commands.Drain())
        session.start(self._ended)
        return session, view

    async def converse(self, seat: Seat, write: Write, socket_gone: asyncio.Future[bool]) -> Ending:
        """Serve one socket until it or the session ends. A session whose client may come back goes on without it.

        socket_gone: done when the socket ended; True when the client said goodbye.
        """
        session = seat.session
        socket_gone.add_done_callback(lambda gone: seat.outbound.leave())
        try:
            ending = await session.serve(seat.outbound, write, seat.owed())
            if ending == DETACHED:
                # a write may fail before the goodbye that ended the socket has been read
                await asyncio.wait([socket_gone], timeout=GOODBYE_S)
        except BaseException:
            self.leave(seat)
            raise
        if socket_gone.done() and socket_gone.result() and self._sessions.get(session.opened.session_id) is session:
            session.actor.end(LEFT.code, LEFT.reason)
            return LEFT
        self.leave(seat)
        return ending

    # out

    def leave(self, seat: Seat) -> None:
        """The client is gone and may come back: the grace begins, unless the session ended or is another seat's."""
        session, session_id = seat.session, seat.session.opened.session_id
        session.actor.detach(seat.outbound)
        if self._sessions.get(session_id) is not session or session.actor.ended:
            return
        self._cancel_grace(session_id)
        loop = asyncio.get_running_loop()
        grace_s = self.settings.grace_ms / 1000
        self._graces[session_id] = loop.call_later(grace_s, session.actor.end, GRACE_OVER.code, GRACE_OVER.reason)
        task = loop.create_task(self._note_detached(session))
        task.add_done_callback(lambda done: done.exception() if not done.cancelled() else None)

    async def _note_detached(self, session: LiveSession) -> None:
        with contextlib.suppress(StoreError):
            await self._store.records.detach(session.opened.lease, grace_ms=self.settings.grace_ms)

    def _cancel_grace(self, session_id: str) -> None:
        if (grace := self._graces.pop(session_id, None)) is not None:
            grace.cancel()

    async def _ended(self, session: LiveSession, ending: Ending) -> None:
        session_id = session.opened.session_id
        if self._sessions.get(session_id) is session:
            self._cancel_grace(session_id)
        try:
            await session.free(ending)
        finally:
            if self._sessions.get(session_id) is session:
                del self._sessions[session_id]
            self._settle_idle()

    def _settle_idle(self) -> None:
        if not self._sessions and not self._opening:
            self._idle.set()

    async def settle_token(self, session: LiveSession) -> None:
        """The client's first message after a resume: it has its new token, the old one is revoked."""
        with contextlib.suppress(StoreError):
            await self._store.records.settle_token(session.opened.lease)

    async def drain(self) -> None:
        """Take no one new, end each session at its next quiet point, and the rest after the bound."""
        self.draining = True
        crash.here("drain")
        for session in list(self._sessions.values()):
            session.actor.put(commands.Drain())
        try:
            async with asyncio.timeout(self.settings.drain_timeout_ms / 1000):
                await self._idle.wait()
        except TimeoutError:
            for session in list(self._sessions.values()):
                session.actor.end(1012, "server_draining")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.close_timeout_ms / 1000 + 1):
                    await self._idle.wait()

    async def _beat(self, address: str) -> None:
        while True:
            await asyncio.sleep(self.settings.gateway_beat_s)
            asked_at = self._tenure.now()
            try:
                await self._store.registry.beat_gateway(self.gateway_id, address)
                if await self._store.registry.mute_ms():
                    await self._record_again()
                await self._renew()
                metrics.STORE_REACHABLE.set(1)
            except StoreError as failure:
                metrics.STORE_REACHABLE.set(0)
                log.warning("beat not taken", why=type(failure).__name__)
                self._tenure.unanswered(asked_at)

    async def _renew(self) -> None:
        """Ask for every lease: who is lost falls silent, who was idle for too long is told so and ends."""
        asked_at, held = self._tenure.now(), list(self._sessions.values())
        heard = {session.opened.session_id for session in held if session.take_heard()}
        try:
            renewed = await self._store.records.renew(self.gateway_id, [session.opened.lease for session in held], heard)
        except StoreError:
            for session in held:
                session.heard = session.heard or session.opened.session_id in heard
            raise
        for session in held:
            session_id = session.opened.session_id
            if (reason := renewed.lost.get(session_id)) is not None:
                metrics.FENCED.labels("beat").inc()
                session.lose(reason)
            elif session_id in renewed.idle:
                metrics.IDLE_SESSIONS.inc()
                session.actor.put(commands.Idle())
        self._tenure.renewed(asked_at)
        for session in held:
            if session.opened.session_id in renewed.forgotten and not session.actor.ended:
                await self._tell_again(session)

    async def _look_at_keys(self) -> None:
        """Apart from the beat: neither many keys nor a failure here may cost a lease."""
        while True:
            await asyncio.sleep(self.settings.gateway_beat_s)
            try:
                await self._end_revoked()
            except Exception as failure:
                log.error("keys not looked at", failure=describe(failure))

    async def _end_revoked(self) -> None:
        """A key that leaked is revoked: what was begun with it is over, too. One that only expired opens nothing new."""
        revoked = await self.gate.revoked(session.opened.key_id for session in self._sessions.values())
        for session in list(self._sessions.values()) if revoked else ():
            if session.opened.key_id in revoked:
                session.actor.end(1008, "api_key_revoked")

    async def _record_again(self) -> None:
        """The store was away, perhaps with all it knew. Sessions that it forgot must be known again before anything is reaped."""
        for session in list(self._sessions.values()):
            await self._tell_again(session)

    async def _tell_again(self, session: LiveSession) -> None:
        try:
            if await self._opener.record_again(session.opened):
                session.actor.commit_anew()
        except StaleGeneration:
            session.lose()
        except SessionClosed as over:
            session.lose(over.reason or "closed")


class Seat:
    """A client's place in a session: what it is owed first, and what then waits for its socket."""

    def __init__(self, session: LiveSession, outbound: Outbound, view: openai_ga.SessionView, extended: bool, taken: Taken | None) -> None:
        self.session, self.outbound, self.extended = session, outbound, extended
        self._view, self._taken = view, taken

    def owed(self) -> Iterator[str]:
        """What a resume owes: that it is one, what is lost of the journal, and the journal."""
        taken, self._taken = self._taken, None
        if taken is None:
            return
        view = self._view
        first_seq = taken.replay[0][0] if taken.replay else taken.last_seq + 1
        if self.extended:
            yield extension.resumed(
                view,
                taken.config,
                seq=taken.last_seq,
                input_samples=taken.input_samples,
                input_frames=taken.input_frames,
                client_seq=taken.client_seq,
                first_seq=first_seq,
            )
            if taken.gap:
                yield extension.journal_gap(view, first_seq)
        else:
            yield openai_ga.render(events.SessionCreated(view.session_id, taken.config.told), None, view).decode()
        for seq, event in taken.replay:
            if event is not None and not self.hears(event):
                continue
            if text := openai_ga.render(event, seq, view).decode() if event is not None else self.skipped(seq):
                yield text

    def skipped(self, seq: int | None) -> str:
        return extension.skipped(self._view, seq) if self.extended else ""

    def hears(self, event: events.Event) -> bool:
        return self.extended or not isinstance(event, events.EXTENSION)

    def durability(self, durable: bool) -> str:
        return extension.durability(self._view, durable) if self.extended else ""


__all__ = ["ClientGone", "Hub", "Seat"]
