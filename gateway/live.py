"""One live session of this gateway: its actor, its stages, and the socket that is attached to it, if one is."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable

import msgspec
import structlog

from session_store.errors import StoreError

from . import metrics
from .actor import SUPERSEDED, Actor, Ending
from .conversation import commands, events
from .conversation.effects import Replace
from .opening import Opened, Opener
from .outbound import Outbound
from .pulse import PulseWatch
from .stages import StageLink, StageRefused

log = structlog.get_logger()
Write = Callable[[str], Awaitable[None]]
DETACHED = Ending(1006, "client_disconnected")
OVERFLOWED = Ending(1013, "output_overflow")
SERVICE_RESTART = 1012


class ClientGone(Exception):
    """The socket takes nothing any more. `clean`: the client said goodbye, and does not come back."""

    def __init__(self, clean: bool = False) -> None:
        super().__init__()
        self.clean = clean


class LiveSession:
    """Owns the shell of one session from its opening or takeover to its end here."""

    def __init__(self, opened: Opened, actor: Actor, opener: Opener, pulse: PulseWatch, close_timeout_s: float) -> None:
        self.opened, self.actor = opened, actor
        self._opener, self._pulse, self._close_timeout_s = opener, pulse, close_timeout_s
        self._replacing: set[asyncio.Task[None]] = set()
        self.running: asyncio.Task[Ending] | None = None

    def start(self, ended: Callable[[LiveSession, Ending], Awaitable[None]]) -> None:
        """Runs until the session ends; `ended` then frees what it holds."""
        for stage in self.opened.links:
            self._listen(stage)
        self.running = asyncio.create_task(self._run(ended), name=f"session {self.opened.session_id}")

    async def _run(self, ended: Callable[[LiveSession, Ending], Awaitable[None]]) -> Ending:
        ending = Ending(1011, "internal_error")
        try:
            ending = await self.actor.run()
            return ending
        finally:
            for task in self._replacing:
                task.cancel()
            await asyncio.gather(*self._replacing, return_exceptions=True)
            for stage in list(self.opened.links):
                self._pulse.forget(self.opened.placements[stage].address, self.opened.links[stage])
            metrics.CLOSES.labels(ending.reason).inc()
            await asyncio.shield(ended(self, ending))

    async def serve(self, outbound: Outbound, write: Write, owed: Iterable[str]) -> Ending:
        """Writes to one socket, first what it is owed, until the session ends, the client is gone, or another takes its place."""
        writing = asyncio.create_task(_write_all(outbound, write, owed))
        broken_off = asyncio.create_task(outbound.broken_off.wait())
        try:
            await asyncio.wait({writing, broken_off}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (writing, broken_off):
                task.cancel()
            await asyncio.gather(writing, broken_off, return_exceptions=True)
            self.actor.detach(outbound)
        if outbound.overflowed:
            return OVERFLOWED
        if outbound.left or (not writing.cancelled() and isinstance(writing.exception(), ClientGone)):
            return DETACHED
        if not writing.cancelled() and (failure := writing.exception()) is not None:
            raise failure
        assert self.running is not None
        return await asyncio.shield(self.running)

    # stages

    def _listen(self, stage: str) -> None:
        link = self.opened.links[stage]
        link.listen(self.actor.put, self.actor.superseded)
        self._pulse.care(self.opened.placements[stage].address, link, stage, link.lost)

    def replace(self, effect: Replace) -> None:
        """Place a lost stage anew, beside the conversation that goes on."""
        lost = self.opened.links.pop(effect.stage, None)
        if lost is not None:
            self._pulse.forget(self.opened.placements[effect.stage].address, lost)
        task = asyncio.create_task(self._replace(effect, lost), name=f"replace {effect.stage}")
        self._replacing.add(task)
        task.add_done_callback(self._replacing.discard)

    async def _replace(self, effect: Replace, lost: StageLink | None) -> None:
        stage, conversation = effect.stage, self.actor.conversation
        if lost is not None:
            await lost.abandon()
        rehearsal, hears = self.actor.rehearsal, "client" in effect.resume_after
        if hears:
            start = rehearsal.begins(effect.resume_after["client"], conversation.input.position)
            effect = Replace(stage, {**effect.resume_after, "client": start})
        try:
            link = await self._opener.place_anew(self.opened, effect, conversation.config, conversation.state.bases.get(stage, 0))
        except (StageRefused, StoreError) as failure:
            log.error("stage not placed anew", session=self.opened.session_id, stage=stage, why=type(failure).__name__)
            metrics.REPLACEMENTS.labels(stage, "failed").inc()
            self.actor.put(commands.StageGone(stage))
            return
        self.opened.links[stage] = link
        self._listen(stage)
        if hears:
            self._rehear(link, effect.resume_after["client"])
        metrics.REPLACEMENTS.labels(stage, "placed").inc()
        self.actor.put(commands.StagePlaced(stage))

    def _rehear(self, link: StageLink, position: int) -> None:
        """The open turn again, as one unbroken edge up to what the stage will be sent next."""
        c = self.actor.conversation
        generation = c.input.generations.get(link.stage, 0)
        for relay in self.actor.rehearsal.after(position):
            again = msgspec.structs.replace(
                relay, stage=link.stage, previous=position, input_generation=generation, config_generation=c.fence.config_generation
            )
            link.relay(again, 0.0)
            position = relay.position

    async def free(self, ending: Ending) -> None:
        """After the end: everything goes back, unless somebody else has the session, or may have it from a gateway that drains."""
        if ending == SUPERSEDED or (ending.code == SERVICE_RESTART and not self.actor.behind and await self._handed_over()):
            await asyncio.gather(*(link.abandon() for link in self.opened.links.values()))
        else:
            with contextlib.suppress(StoreError):
                await self._opener.close(self.opened, ending.reason)

    async def _handed_over(self) -> bool:
        """Left in the store for whoever the client asks next, within the grace. False: the store is away, nobody could."""
        try:
            await self._opener.hand_over(self.opened)
        except StoreError:
            return False
        return True


async def _write_all(outbound: Outbound, write: Write, owed: Iterable[str]) -> None:
    for text in owed:
        await write(text)
        metrics.SERVER_EVENTS.labels("Replayed").inc()
    while (frame := await outbound.get()) is not None:
        await write(frame.text)
        metrics.SERVER_EVENTS.labels(frame.kind).inc()
        if frame.at:
            _observe(outbound, frame.kind, bool(frame.response_id), time.perf_counter() - frame.at)


def _observe(outbound: Outbound, kind: str, is_audio: bool, seconds: float) -> None:
    if is_audio:
        metrics.TO_CLIENT.observe(seconds)
        if outbound.turn_ended_at:
            metrics.FIRST_AUDIO_SECONDS.observe(time.perf_counter() - outbound.turn_ended_at)
            outbound.turn_ended_at = 0.0
    elif kind == events.SpeechStarted.__name__:
        metrics.BARGE_IN_SECONDS.observe(seconds)
