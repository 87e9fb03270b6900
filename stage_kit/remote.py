"""Runs an engine that calls an outside service: on the event loop, one task for each response in work."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from parley_stage.v1 import stage_pb2

from stage_kit.engine import Append, Label, RemoteEngine
from stage_kit.logs import describe, logger
from stage_kit.loop import Control
from stage_kit.metrics import StageMetrics
from stage_kit.settings import Settings

if TYPE_CHECKING:
    from stage_kit.session import Session


class _Work(msgspec.Struct):
    """One response of one session: what is still to be answered, and the task that does it."""

    label: Label
    queue: deque[Append]
    task: asyncio.Task[None] | None = None


class RemoteLoop:
    """See stage_kit.loop.Runner."""

    def __init__(self, engine: RemoteEngine, settings: Settings, metrics: StageMetrics) -> None:
        self._engine = engine
        self._settings = settings
        self._metrics = metrics
        self._works: dict[Session, dict[str, _Work]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._log = logger(stage=engine.card.stage)

    async def start(self) -> None:
        """Probes the service. Raises what RemoteEngine.load raised."""
        await self._engine.load()

    def control(self, control: Control, session: Session) -> None:
        """See Runner."""
        if control is Control.OPEN:
            self._works[session] = {}
            asyncio.get_running_loop().call_soon(self._opened, session)
        elif control is Control.CLOSE:
            stopped = self._stop(session, lambda work: True)
            self._works.pop(session, None)
            task = asyncio.get_running_loop().create_task(self._closed(session, stopped))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        else:
            self._stop(session, lambda work: bool(work.label.response_id) and work.label.epoch < session.slot.epoch)

    def appended(self, session: Session) -> None:
        """See Runner."""
        works = self._works.get(session)
        while works is not None and sum(len(work.queue) for work in works.values()) < self._settings.receive_burst_count:
            item = session.pending.pop()
            if item is None:
                break
            slot = session.slot
            if item.stale(slot.epoch, session.input_generation) or slot.has_failed(item.label):
                continue
            session.intake.configure(item.append.config_generation)
            slot.asked(item.label, item.arrived)
            work = works.setdefault(item.label.response_id, _Work(item.label, deque()))
            work.queue.extend(session.intake.take(item))
            if work.task is None:
                work.task = asyncio.get_running_loop().create_task(self._answer(session, work))
        pending = session.pending
        if pending.turned_back and pending.bytes <= self._settings.pending_append_bytes // 2:
            pending.turned_back = False
            asyncio.get_running_loop().call_soon(session.has_space, None)

    def age_ms(self) -> int:
        """The event loop itself answers, so it turned just now."""
        return 0

    def stop(self) -> None:
        """Cancels all work."""
        for session in list(self._works):
            self._stop(session, lambda work: True)

    def join(self, seconds: float) -> None:
        """See Runner: it has no thread."""

    def _opened(self, session: Session) -> None:
        session.opened(None)
        self.appended(session)

    async def _closed(self, session: Session, stopped: list[asyncio.Task[None]]) -> None:
        await asyncio.gather(*stopped, return_exceptions=True)
        session.closed(None)

    async def _answer(self, session: Session, work: _Work) -> None:
        slot = session.slot
        try:
            while work.queue and not slot.has_failed(work.label):
                append = work.queue.popleft()
                self.appended(session)
                await slot.room()
                await self._engine.answer(slot, append)
        except Exception as error:
            self._log.error("work failed", session_id=session.session_id, response_id=work.label.response_id, error=describe(error))
            self._metrics.faults.inc()
            reason = f"the outside service failed ({type(error).__name__})"
            slot.fail(work.label, reason, code=stage_pb2.StageError.CODE_UPSTREAM_FAILED)
        finally:
            works = self._works.get(session)
            if works is not None and works.get(work.label.response_id) is work:
                del works[work.label.response_id]
                self.appended(session)

    def _stop(self, session: Session, concerned: Callable[[_Work], bool]) -> list[asyncio.Task[None]]:
        works = self._works.get(session, {})
        stopped = [work for work in works.values() if concerned(work)]
        for work in stopped:
            del works[work.label.response_id]
            work.queue.clear()
        tasks = [work.task for work in stopped if work.task is not None]
        for task in tasks:
            task.cancel()
        return tasks
