"""One live session of this gateway: its actor, its stages, and the socket that is attached to it, if one is."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

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

    async def serve(self, outbound: Outbound, write: Write, skipped: Callable[[int], str]) -> Ending:
        """Writes to one socket until the session ends, the client is gone, or another socket takes its place."""
        self.actor.attach(outbound, skipped)
        try:
            while (frame := await outbound.get()) is not None:
                await write(frame.text)
                metrics.SERVER_EVENTS.labels(frame.kind).inc()
                if frame.at:
                    _observe(outbound, frame.kind, bool(frame.response_id), time.perf_counter() - frame.at)
        except ClientGone:
            return DETACHED
        finally:
            self.actor.detach(outbound)
        if outbound.left or outbound.overflowed:
            return DETACHED if outbound.left else OVERFLOWED
        assert self.running is not None
        return await asyncio.shield(self.running)

    async def abandon(self) -> None:
        """The session is another's: let go of its stages, free nothing."""
        self.actor.superseded()
        if self.running is not None:
            await asyncio.wait([self.running])

    # stages

    def _listen(self, stage: str) -> None:
        link = self.opened.links[stage]
        link.listen(self.actor.put, self.actor.superseded)
        self._pulse.care(self.opened.placements[stage].address, link, stage, link.lost)

    def replace(self, effect: Replace) -> None:
        """Place a lost stage anew, beside the conversation that goes on."""
        task = asyncio.create_task(self._replace(effect), name=f"replace {effect.stage}")
        self._replacing.add(task)
        task.add_done_callback(self._replacing.discard)

    async def _replace(self, effect: Replace) -> None:
        stage, conversation = effect.stage, self.actor.conversation
        lost = self.opened.links.pop(stage, None)
        if lost is not None:
            self._pulse.forget(self.opened.placements[stage].address, lost)
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
        """After the end: everything goes back, unless somebody else has the session."""
        if ending == SUPERSEDED:
            await asyncio.gather(*(link.abandon() for link in self.opened.links.values()))
        else:
            with contextlib.suppress(StoreError):
                await self._opener.close(self.opened, ending.reason)


def _observe(outbound: Outbound, kind: str, is_audio: bool, seconds: float) -> None:
    if is_audio:
        metrics.TO_CLIENT.observe(seconds)
        if outbound.turn_ended_at:
            metrics.FIRST_AUDIO_SECONDS.observe(time.perf_counter() - outbound.turn_ended_at)
            outbound.turn_ended_at = 0.0
    elif kind == events.SpeechStarted.__name__:
        metrics.BARGE_IN_SECONDS.observe(seconds)
