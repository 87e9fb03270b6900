"""Where the stages of one session are: listened to, watched, placed anew when they are lost, and moved when their replica drains."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any

import msgspec
import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_delay, wait_random_exponential

from session_store import Placement
from session_store.errors import AtCapacity, ReservationLost, StagesUnavailable, StoreError, StoreUnavailable

from . import metrics
from .actor import Actor
from .conversation import camera, commands
from .conversation.effects import Replace, Vacate
from .opening import Opened, Opener
from .pulse import PulseWatch
from .settings import Settings
from .stages import StageLink, StageRefused

log = structlog.get_logger()
FIRST_PAUSE_S, PAUSE_S = 0.2, 1.0
"""At most, between two looks for a replica that is to come; each session waits another part of it, lest all ask at once."""


class Places:
    """Of one session. What it does takes time and goes on beside the conversation, which hears of it by commands."""

    def __init__(self, opened: Opened, opener: Opener, pulse: PulseWatch, settings: Settings) -> None:
        self._opened, self._opener, self._pulse = opened, opener, pulse
        self._actor: Actor
        self._stay_s = settings.stay_ms / 1000
        self._wait_s = settings.stage_wait_ms / 1000
        self._attach_timeout_s = settings.attach_timeout_ms / 1000
        self._close_timeout_s = settings.close_timeout_ms / 1000
        self._leaving: set[str] = set()
        self._left: dict[str, StageLink] = {}
        """Where stages were until it is committed that they moved."""
        self._working: set[asyncio.Task[None]] = set()

    def start(self, actor: Actor) -> None:
        self._actor = actor
        for stage in self._opened.links:
            self._listen(stage)

    async def stop(self) -> None:
        for task in self._working:
            task.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)
        for stage, link in self._opened.links.items():
            self._pulse.forget(self._opened.placements[stage].address, link)

    def replace(self, effect: Replace) -> None:
        """Place a stage anew: one that is lost, or one that leaves."""
        self._leaving.discard(effect.stage)
        link = self._opened.links.pop(effect.stage, None)
        if link is not None:
            self._pulse.forget(self._opened.placements[effect.stage].address, link)
        work = self._move(effect, link) if effect.leaves and link is not None else self._replace(effect, link)
        self._work(work, f"replace {effect.stage}")

    def vacate(self, effect: Vacate) -> None:
        """It is known to be elsewhere now: the replica that it left need not hold it any more."""
        if (link := self._left.pop(effect.stage, None)) is not None:
            self._work(self._release(link), f"vacate {effect.stage}")

    def _work(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    def _listen(self, stage: str) -> None:
        link, address = self._opened.links[stage], self._opened.placements[stage].address
        link.listen(self._actor.put, self._actor.superseded)
        self._pulse.care(address, link, stage, link.lost, partial(self._drains, stage))

    # a stage that is lost

    async def _replace(self, effect: Replace, lost: StageLink | None) -> None:
        stage, started = effect.stage, time.perf_counter()
        if lost is not None:
            await lost.abandon()
        try:
            await self._place_in_time(effect, 0.0 if lost is not None and lost.refused else self._wait_s)
        except (StageRefused, StoreError) as failure:
            log.error("stage not placed anew", session=self._opened.session_id, stage=stage, why=type(failure).__name__)
            metrics.REPLACEMENTS.labels(stage, "failed").inc()
            self._actor.put(commands.StageGone(stage))
            return
        metrics.REPLACEMENTS.labels(stage, "placed").inc()
        metrics.REPLACE_SECONDS.observe(time.perf_counter() - started)

    async def _place_in_time(self, effect: Replace, wait_s: float) -> None:
        """The process may be on its way back: while no replica has a place it is looked for again, ever less often. One that lives and
        ended the session is not waited for."""
        left = self._opened.placements[effect.stage].replica_id
        patiently = AsyncRetrying(
            retry=retry_if_exception(_may_come),
            stop=stop_after_delay(wait_s),
            wait=wait_random_exponential(multiplier=FIRST_PAUSE_S, max=PAUSE_S),
            before_sleep=partial(self._waits, effect.stage),
            reraise=True,
        )
        await patiently(self._place, effect, left)

    def _waits(self, stage: str, tried: RetryCallState) -> None:
        if tried.attempt_number == 1 and tried.outcome is not None:
            log.warning("stage waited for", session=self._opened.session_id, stage=stage, why=type(tried.outcome.exception()).__name__)
            metrics.REPLACEMENTS.labels(stage, "waited").inc()

    async def _place(self, effect: Replace, left: str) -> None:
        stage, conversation, heard_up_to = effect.stage, self._actor.conversation, self._heard_up_to(effect)
        if heard_up_to is not None:
            effect = msgspec.structs.replace(effect, resume_after={**effect.resume_after, "client": heard_up_to})
        if camera.SOURCE in effect.resume_after:  # pictures are not kept
            effect = msgspec.structs.replace(effect, resume_after={**effect.resume_after, camera.SOURCE: conversation.input.frames})
        base = conversation.state.bases.get(stage, 0)
        link = await self._opener.place_anew(self._opened, effect, left, conversation.config, base, conversation.memory.recap)
        self._take_up(link, heard_up_to)

    def _heard_up_to(self, effect: Replace) -> int | None:
        """Where what is kept of the client's audio begins to be heard again; None for a stage that does not hear it."""
        position = effect.resume_after.get("client")
        return None if position is None else self._actor.rehearsal.begins(position, self._actor.conversation.input.position)

    def _take_up(self, link: StageLink, heard_up_to: int | None, *, back: bool = False) -> None:
        """The conversation is told first: what a stage says before is taken for the last words of one that is given up."""
        self._opened.links[link.stage] = link
        self._actor.put(commands.StagePlaced(link.stage, back=back))
        self._listen(link.stage)
        if heard_up_to is not None:
            self._rehear(link, heard_up_to)

    def _rehear(self, link: StageLink, position: int) -> None:
        """The open turn again, as one unbroken edge up to what the stage will be sent next."""
        c = self._actor.conversation
        generation = c.input.generations.get(link.stage, 0)
        for relay in self._actor.rehearsal.after(position):
            again = msgspec.structs.replace(
                relay, stage=link.stage, previous=position, input_generation=generation, config_generation=c.fence.config_generation
            )
            link.relay(again, 0.0)
            position = relay.position

    # a stage whose replica drains

    def _drains(self, stage: str) -> None:
        """Said at every beat of its replica."""
        if stage not in self._leaving and not self._actor.ended:
            self._leaving.add(stage)
            self._work(self._look_elsewhere(stage), f"leave {stage}")

    async def _look_elsewhere(self, stage: str) -> None:
        """A place first, and then the conversation is asked when it can do without the stage for a moment. Without one, it stays."""
        here = self._opened.placements[stage]
        try:
            await self._opener.reserve_elsewhere(self._opened, stage)
        except StoreError as failure:
            log.warning("stage stays where it drains", session=self._opened.session_id, stage=stage, why=type(failure).__name__)
            await self._stay(stage)
            return
        if self._opened.placements[stage] is here and stage in self._leaving:
            self._actor.put(commands.StageDraining(stage))

    async def _stay(self, stage: str) -> None:
        metrics.MOVES.labels(stage, "stayed").inc()
        await asyncio.sleep(self._stay_s)
        self._leaving.discard(stage)

    async def _move(self, effect: Replace, left: StageLink) -> None:
        """To the place that was found. If it cannot be opened there, back to where it is still held."""
        stage, here, started = effect.stage, self._opened.placements[effect.stage], time.perf_counter()
        await left.abandon()
        try:
            await self._place(effect, here.replica_id)
        except (StageRefused, StoreError) as failure:
            log.warning("stage could not move", session=self._opened.session_id, stage=stage, why=type(failure).__name__)
            await self._go_back(effect, left, here)
            return
        self._left[stage] = left
        metrics.MOVES.labels(stage, "moved").inc()
        metrics.MOVE_SECONDS.observe(time.perf_counter() - started)

    async def _go_back(self, effect: Replace, left: StageLink, here: Placement) -> None:
        stage, conversation = effect.stage, self._actor.conversation
        await self._opener.stay(self._opened, stage, here)
        link = self._opener.link(self._opened, stage, left.base)
        try:
            await link.attach(conversation.state.bases.get(stage, 0), self._attach_timeout_s)
        except StageRefused:
            await self._replace(effect, link)
            return
        self._leaving.add(stage)
        self._take_up(link, self._heard_up_to(effect), back=True)
        await self._stay(stage)

    async def _release(self, link: StageLink) -> None:
        if not await link.release("moved", self._close_timeout_s):
            log.warning("old place not confirmed free", session=self._opened.session_id, stage=link.stage)


def _may_come(failure: BaseException) -> bool:
    """Nobody refused the session as such: there is no replica, or none has room, or it cannot be found out."""
    if isinstance(failure, StageRefused):
        return failure.elsewhere
    return isinstance(failure, StagesUnavailable | AtCapacity | ReservationLost | StoreUnavailable)
