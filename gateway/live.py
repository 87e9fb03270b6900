"""One live session of this gateway: its actor, its stages, and the socket that is attached to it, if one is."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable

import structlog

from session_store.errors import StoreError

from . import metrics
from .actor import Actor
from .conversation import events
from .ending import LOST, Ending
from .opening import Opened, Opener
from .outbound import Frame, Outbound
from .places import Places
from .tenure import Tenure

log = structlog.get_logger()
Write = Callable[[str], Awaitable[None]]
DETACHED = Ending(1006, "client_disconnected")
OVERFLOWED = Ending(1013, "output_overflow")
SERVICE_RESTART = 1012
LEAST_GAP_S = 0.01
"""A shorter silence is nobody's to hear."""


class ClientGone(Exception):
    """The socket takes nothing any more. `clean`: the client said goodbye, and does not come back."""

    def __init__(self, clean: bool = False) -> None:
        super().__init__()
        self.clean = clean


class LiveSession:
    """Owns the shell of one session from its opening or takeover to its end here."""

    def __init__(self, opened: Opened, actor: Actor, opener: Opener, places: Places, tenure: Tenure) -> None:
        self.opened, self.actor = opened, actor
        self._opener, self._places, self._tenure = opener, places, tenure
        self.running: asyncio.Task[Ending] | None = None
        self.heard = True
        """The client said something since the lease was renewed last."""

    def start(self, ended: Callable[[LiveSession, Ending], Awaitable[None]]) -> None:
        """Runs until the session ends; `ended` then frees what it holds."""
        self._places.start(self.actor)
        self.running = asyncio.create_task(self._run(ended), name=f"session {self.opened.session_id}")

    async def _run(self, ended: Callable[[LiveSession, Ending], Awaitable[None]]) -> Ending:
        ending = Ending(1011, "internal_error")
        try:
            ending = await self.actor.run()
            return ending
        finally:
            await self._places.stop()
            self.actor.rehearsal.clear()  # by far the most that a session keeps, and what ended may lie until it is collected
            metrics.CLOSES.labels(ending.reason).inc()
            await asyncio.shield(ended(self, ending))

    def lose(self, reason: str = "") -> None:
        """It is somebody else's now, or was closed for this reason: nothing more is said to anybody."""
        self.actor.superseded(closed=bool(reason))
        for link in self.opened.links.values():
            link.hush()

    def take_heard(self) -> bool:
        """Whether the client said something since this was asked last."""
        heard, self.heard = self.heard, False
        return heard

    async def serve(self, outbound: Outbound, write: Write, owed: Iterable[str]) -> Ending:
        """Writes to one socket, first what it is owed, until the session ends, the client is gone, or another takes its place."""
        writing = asyncio.create_task(self._write_all(outbound, write, owed))
        broken_off = asyncio.create_task(outbound.broken_off.wait())
        try:
            await asyncio.wait({writing, broken_off}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (writing, broken_off):
                task.cancel()
            await asyncio.gather(writing, broken_off, return_exceptions=True)
            self.actor.detach(outbound)
        if outbound.overflowed:
            metrics.OVERFLOWS.inc()
            return OVERFLOWED
        if outbound.left or (not writing.cancelled() and isinstance(writing.exception(), ClientGone)):
            return DETACHED
        if not writing.cancelled() and (failure := writing.exception()) is not None:
            raise failure
        assert self.running is not None
        return await asyncio.shield(self.running)

    async def _write_all(self, outbound: Outbound, write: Write, owed: Iterable[str]) -> None:
        """Each only while the lease holds: a process that stood still waits for the store's word, and is silent if it lost the session."""
        for text in owed:
            if not await self._may_write():
                return
            await write(text)
            metrics.SERVER_EVENTS.labels("Replayed").inc()
        while (frame := await outbound.get()) is not None:
            if not await self._may_write():
                return
            await write(frame.text)
            metrics.server_events(frame.kind).inc()
            if frame.at:
                _observe(outbound, frame, time.perf_counter())

    async def _may_write(self) -> bool:
        if not self._tenure.holds():
            await self._tenure.confirmed()
        return not self.actor.lost

    async def free(self, ending: Ending) -> None:
        """After the end: everything goes back, unless somebody else has the session, or may have it from a gateway that drains."""
        if ending in LOST or (ending.code == SERVICE_RESTART and not self.actor.behind and await self._handed_over()):
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


def _observe(outbound: Outbound, frame: Frame, now: float) -> None:
    if frame.is_sound:
        metrics.TO_CLIENT.observe(now - frame.at)
        if (gap := outbound.gap_before(frame, now)) > LEAST_GAP_S:
            metrics.PLAYBACK_GAPS.observe(gap)
        if outbound.turn_ended_at:
            metrics.FIRST_AUDIO_SECONDS.observe(now - outbound.turn_ended_at)
            outbound.turn_ended_at = 0.0
    elif frame.kind == events.SpeechStarted.__name__:
        metrics.BARGE_IN_SECONDS.observe(now - frame.at)
