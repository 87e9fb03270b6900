"""The shell around one conversation: one mailbox in, one writer out. It commits, then performs the core's effects.

Two loops share the session and nothing else: `_decide` turns what arrives into transitions and performs at once what needs no commit;
`_commit` takes all that gathered, commits it in one go, and performs the rest. At most one commit is in flight; what gathers meanwhile
rides in the next.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec
import structlog

from . import metrics
from .conversation import commands, events
from .conversation import effects as fx
from .conversation.checkpoint import Checkpoint, Checkpointer
from .conversation.session import Conversation
from .logs import describe
from .outbound import Frame, Outbound
from .stages import StageLink

log = structlog.get_logger()
_encode = msgspec.msgpack.encode

JournalEntry = tuple[bytes, bytes]
"""(head, payload): msgpack of (seq, event name), msgpack of the event."""

MAX_GATHERED_BYTES = 1024 * 1024
"""Journal entries that may wait for the next commit before the client is read on."""
MAX_MAILBOX = 16
"""Commands that may wait for their transition before the client is read on."""


class Performance(msgspec.Struct, frozen=True):
    """An effect that waits for its commit, what caused it when (perf_counter), and its journal entry if it is an event."""

    effect: fx.Effect
    at: float
    entry: JournalEntry | None = None


class CommitLog(Protocol):
    """Where transitions become durable. Raises StaleLease when another gateway has the session."""

    async def commit(self, first_seq: int, entries: list[JournalEntry], checkpoint: Checkpoint) -> bool:
        """True when it is durable; False when the store did not answer in time and the session goes on without it."""


class StaleLease(Exception):
    """The session is not ours any more: drop everything, tell nobody."""


class ClientGone(Exception):
    """The socket takes nothing any more."""


class Ending(msgspec.Struct, frozen=True):
    """How an actor ended: the WebSocket close code and its reason."""

    code: int
    reason: str


class Actor:
    """Runs until the core closes, the client leaves, or the lease is lost."""

    def __init__(
        self,
        conversation: Conversation,
        links: dict[str, StageLink],
        commit_log: CommitLog,
        render: Callable[[events.Event, int | None], bytes],
        outbound: Outbound,
    ) -> None:
        self.conversation, self.links, self.outbound = conversation, links, outbound
        self._log, self._render = commit_log, render
        self._checkpointer = Checkpointer(conversation)
        self._mailbox: deque[tuple[commands.Command, float]] = deque()
        self._arrived = asyncio.Event()
        self._pending: list[Performance] = []
        self._pending_bytes = 0
        self._taken = asyncio.Event()
        self._dirty = asyncio.Event()
        self._born = time.monotonic()
        self._ending: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._turn_ended_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    # one mailbox in

    def put(self, command: commands.Command, at: float = 0.0) -> None:
        self._mailbox.append((command, at))
        self._arrived.set()

    def end(self, code: int, reason: str) -> None:
        if not self._ending.done():
            self._ending.set_result(Ending(code, reason))

    async def room(self, max_bytes: int) -> None:
        """Waits while stages have not accepted more than this, or commits fall behind: the socket's own flow control holds the client."""
        while len(self._mailbox) > MAX_MAILBOX or self._pending_bytes > MAX_GATHERED_BYTES:
            self._taken.clear()
            await self._taken.wait()
        for link in self.links.values():
            if link.pending_bytes > max_bytes:
                await link.accepted_down_to(max_bytes)

    @property
    def elapsed_ms(self) -> int:
        return int((time.monotonic() - self._born) * 1000)

    async def run(self, write: Callable[[str], Awaitable[None]]) -> Ending:
        """Returns how it ended; by then nothing runs and nothing more is written. `write` raises ClientGone when it cannot."""
        tasks = [
            asyncio.create_task(self._decide(), name="decide"),
            asyncio.create_task(self._commit(), name="commit"),
            asyncio.create_task(self._write(write), name="write"),
        ]
        for task in tasks:
            task.add_done_callback(self._loop_ended)
        try:
            ending = await self._ending
            if ending.code != 1006:
                self.outbound.end()
                await asyncio.wait([tasks[2]], timeout=1.0)
            return ending
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _loop_ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        failure = task.exception()
        if isinstance(failure, ClientGone):
            self.end(1006, "client_disconnected")
        elif failure is not None and not self._ending.done():
            log.error("session failed", session=self.conversation.session_id, loop=task.get_name(), failure=describe(failure))
            self.end(1011, "internal_error")

    # transitions

    async def _decide(self) -> None:
        while True:
            while self._mailbox:
                self._transition(*self._mailbox.popleft())
            self._taken.set()
            self._tick_if_due()
            self._arrived.clear()
            self._arm()
            await self._arrived.wait()

    def _tick_if_due(self) -> None:
        deadline = self.conversation.deadline
        if deadline is not None and deadline <= self.elapsed_ms:
            self._transition(commands.Tick(), time.perf_counter())

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self.conversation.deadline
        if deadline is not None and not self.conversation.state.closing:
            delay = max(0.001, self._born + (deadline + 1) / 1000 - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay, self._arrived.set)

    def _transition(self, command: commands.Command, at: float) -> None:
        for effect in self.conversation.receive(command, self.elapsed_ms):
            match effect:
                case fx.Relay():
                    self.links[effect.stage].relay(effect, at)
                case fx.Grant():
                    self.links[effect.stage].grant(effect)
                case fx.Mute():
                    self.outbound.mute(effect.response_id)
                case fx.Emit(seq, event):
                    entry = _encode((seq, type(event).__name__)), _encode(event)
                    self._pending_bytes += len(entry[1])
                    self._gather(Performance(effect, at, entry))
                case _:
                    self._gather(Performance(effect, at))

    def _gather(self, performance: Performance) -> None:
        self._pending.append(performance)
        self._dirty.set()

    # commit, then act

    async def _commit(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            batch, self._pending, self._pending_bytes = self._pending, [], 0
            self._taken.set()
            if not batch:
                continue
            entries = [each.entry for each in batch if each.entry is not None]
            first_seq = self.conversation.state.seq + 1 - len(entries)
            started = time.perf_counter()
            try:
                durable = await self._log.commit(first_seq, entries, self._checkpointer.take())
            except StaleLease:
                self.end(1006, "stale_lease")
                return
            metrics.COMMIT_SECONDS.observe(time.perf_counter() - started)
            if not durable:
                self._checkpointer.forget()
            for each in batch:
                self._perform(each.effect, each.at)

    def _perform(self, effect: fx.Effect, at: float) -> None:
        match effect:
            case fx.Emit():
                self._emit(effect, at)
            case fx.Order():
                self.links[effect.stage].order(effect, at)
            case fx.Ack():
                self.links[effect.stage].ack(effect.position)
            case fx.Close():
                self.end(effect.code, effect.reason)

    def _emit(self, effect: fx.Emit, at: float) -> None:
        event = effect.event
        kind = type(event).__name__
        response_id = event.response_id if isinstance(event, events.AudioDelta) else ""
        frame = Frame(self._render(event, effect.seq).decode(), response_id, at, kind)
        if not self.outbound.put(frame):
            if not self._ending.done():
                metrics.OVERFLOWS.inc()
                self.end(1013, "output_overflow")
            return
        if isinstance(event, events.ResponseDone):
            self.outbound.forget(event.response.id)
            metrics.RESPONSES.labels(event.response.status).inc()
        elif isinstance(event, events.Error):
            metrics.REFUSALS.labels(event.code).inc()
        elif isinstance(event, events.SpeechStopped):
            self._turn_ended_at = at

    # one writer out

    async def _write(self, write: Callable[[str], Awaitable[None]]) -> None:
        while (frame := await self.outbound.get()) is not None:
            await write(frame.text)
            metrics.SERVER_EVENTS.labels(frame.kind).inc()
            if not frame.at:
                continue
            now = time.perf_counter()
            if frame.response_id:
                metrics.TO_CLIENT.observe(now - frame.at)
                if self._turn_ended_at:
                    metrics.FIRST_AUDIO_SECONDS.observe(now - self._turn_ended_at)
                    self._turn_ended_at = 0.0
            elif frame.kind == "SpeechStarted":
                metrics.BARGE_IN_SECONDS.observe(now - frame.at)
