"""The shell around one conversation: one mailbox in, and out to whatever socket is attached. It commits, then performs the core's effects.

Two loops share the session and nothing else: `_decide` turns what arrives into transitions and performs at once what needs no commit;
`_commit` takes all that gathered, commits it in one go, and performs the rest. At most one commit is in flight; what gathers meanwhile
rides in the next.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec
import structlog

from . import crash, metrics
from .conversation import commands, events
from .conversation import effects as fx
from .conversation.checkpoint import Checkpoint, Checkpointer
from .conversation.session import Conversation, held_bytes
from .ending import LOST, REAPED, SUPERSEDED, Ending
from .logs import describe
from .outbound import Frame, Outbound
from .rehearsal import REHEARD_BYTES, Rehearsal
from .stages import StageLink
from .tenure import Tenure

log = structlog.get_logger()
_encode = msgspec.msgpack.encode

JournalEntry = tuple[bytes, bytes]
"""(head, payload): msgpack of (seq, event name), msgpack of the event."""

MAX_GATHERED_BYTES = 1024 * 1024
"""Journal entries that may wait for the next commit before the client is read on."""
MAX_MAILBOX = 16
"""Commands that may wait for their transition before the client is read on."""
CATCH_UP_S = 1.0
"""After a commit that was not durable, the next is tried so soon, even if nothing happens meanwhile."""
GRID_S = 0.005
"""All sessions' deadlines fall on one grid, so that what is due at about the same time is committed in one round trip."""
LINGER_S = 0.5
"""What stages may forget waits so long for a commit that something else asks for."""


class Performance(msgspec.Struct, frozen=True):
    """An effect that waits for its commit, what caused it when (perf_counter), and its journal entry if it is an event."""

    effect: fx.Effect
    at: float
    entry: JournalEntry | None = None


class CommitLog(Protocol):
    """Where transitions become durable. Raises StaleLease when another gateway has the session."""

    @property
    def overdue(self) -> bool:
        """Nothing has been durable for too long: the session should end."""

    async def commit(self, first_seq: int, entries: list[JournalEntry], checkpoint: Checkpoint, acked_seq: int) -> bool:
        """True when it is durable; False when the store did not answer in time and the session goes on without it."""

    def begin_anew(self) -> None:
        """The next commit is a full checkpoint with a new journal."""


class StaleLease(Exception):
    """The session is not ours any more: drop everything, tell nobody. `closed`: nobody else has it, it was ended in our place."""

    def __init__(self, closed: bool = False) -> None:
        super().__init__()
        self.closed = closed


class Beyond(Protocol):
    """Renders what one socket is told beyond the core's events; "" for what it does not care to hear."""

    def skipped(self, seq: int | None) -> str:
        """Stands for a piece of audio that was muted before it left."""

    def durability(self, durable: bool) -> str:
        """Whether a resume would find what is said now."""

    def hears(self, event: events.Event) -> bool:
        """Whether this client is told of such events at all."""


class StageShell(Protocol):
    """Where stages are is the shell's."""

    def replace(self, effect: fx.Replace) -> None:
        """Place a stage anew: one that is lost, or one that is to move."""

    def vacate(self, effect: fx.Vacate) -> None:
        """It is known to be elsewhere now: let go of where it was."""


class Actor:
    """Runs until the core closes, the grace is over, or the session is taken over; a socket may come and go meanwhile."""

    def __init__(
        self,
        conversation: Conversation,
        links: dict[str, StageLink],
        commit_log: CommitLog,
        render: Callable[[events.Event, int | None], bytes],
        shell: StageShell,
        tenure: Tenure,
    ) -> None:
        self.conversation, self.links = conversation, links
        self.outbound: Outbound | None = None
        self.acked_seq = 0
        """Highest server event that the client says it has: the journal needs it no more."""
        self.rehearsal = Rehearsal(REHEARD_BYTES)
        self._shell, self._tenure = shell, tenure
        self._beyond: Beyond | None = None
        self._log, self._render = commit_log, render
        self._checkpointer = Checkpointer(conversation)
        self._next_seq = conversation.state.seq + 1
        """What follows in the journal."""
        self._mailbox: deque[tuple[commands.Command, float]] = deque()
        self._arrived = asyncio.Event()
        self._pending: list[Performance] = []
        self._pending_bytes = 0
        self._behind = self._owed = False
        self._taken = asyncio.Event()
        self._dirty = asyncio.Event()
        self._born = time.monotonic() - conversation.now / 1000
        self._ending: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = 0
        self._commit_timer: asyncio.TimerHandle | None = None

    # one mailbox in

    def put(self, command: commands.Command, at: float = 0.0) -> None:
        self._mailbox.append((command, at))
        self._arrived.set()

    def superseded(self, *, closed: bool = False) -> None:
        """Another gateway (or another connection here) has the session, or it was closed in our place: nothing of it is ours any more."""
        ending = REAPED if closed else SUPERSEDED
        self.end(ending.code, ending.reason)

    def end(self, code: int, reason: str) -> None:
        if not self._ending.done():
            self._ending.set_result(Ending(code, reason))

    @property
    def ended(self) -> bool:
        return self._ending.done()

    @property
    def lost(self) -> bool:
        """Somebody else has the session, or ended it."""
        return self._ending.done() and self._ending.result() in LOST

    async def room(self, max_bytes: int) -> None:
        """Waits while stages have not accepted more than this, or commits fall behind: the socket's own flow control holds the client."""
        while self._is_full() and not self.ended:
            self._taken.clear()
            await self._taken.wait()
        for link in list(self.links.values()):
            if link.pending_bytes > max_bytes:
                await link.accepted_down_to(max_bytes)

    def _is_full(self) -> bool:
        """What waits behind a session.update is bounded: the client's next command is read when it fits, however large it is."""
        held, limits = self.conversation.state.held_commands, self.conversation.limits
        many, much = limits.max_held_commands // 2, limits.max_pending_input_bytes // 4
        if held and (self._mailbox or len(held) >= many or held_bytes(held) >= much):
            return True
        return len(self._mailbox) > MAX_MAILBOX or self._pending_bytes > MAX_GATHERED_BYTES

    @property
    def elapsed_ms(self) -> int:
        return int((time.monotonic() - self._born) * 1000)

    @property
    def behind(self) -> bool:
        """The store does not have what happened last: nobody could go on from it."""
        return self._behind

    def commit_anew(self) -> None:
        """The store forgot the session: it is told all again, whether or not something happens."""
        self._checkpointer.forget()
        self._log.begin_anew()
        self._owed = True
        self._dirty.set()

    def attach(self, outbound: Outbound, beyond: Beyond) -> None:
        """From now on events go to this socket; the journal has what came before."""
        self.outbound, self._beyond = outbound, beyond

    def detach(self, outbound: Outbound) -> bool:
        """The socket is gone; False when another one had taken its place."""
        if self.outbound is not outbound:
            return False
        self.outbound = None
        return True

    async def run(self) -> Ending:
        """Returns how the session ended; by then nothing of it runs here."""
        tasks = [asyncio.create_task(self._decide(), name="decide"), asyncio.create_task(self._commit(), name="commit")]
        for task in tasks:
            task.add_done_callback(self._loop_ended)
        try:
            return await self._ending
        finally:
            for timer in (self._timer, self._commit_timer):
                if timer is not None:
                    timer.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self.outbound is not None and self._ending.done() and not self.lost:
                self.outbound.end()
            elif self.outbound is not None:
                self.outbound.break_off()

    def _loop_ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        failure = task.exception()
        if failure is not None and not self._ending.done():
            log.error("session failed", session=self.conversation.session_id, loop=task.get_name(), failure=describe(failure))
            self.end(1011, "internal_error")

    # transitions

    async def _decide(self) -> None:
        while True:
            while self._mailbox:
                if not await self._ours():
                    return
                self._transition(*self._mailbox.popleft())
            self._taken.set()
            self._arrived.clear()
            self._arm(self._tick_if_due())
            await self._arrived.wait()

    async def _ours(self) -> bool:
        """False when the session was lost while this process stood still: past its deadline it waits for the store's word."""
        if not self._tenure.holds():
            await self._tenure.confirmed()
        return not self.lost

    def _tick_if_due(self) -> int | None:
        """Answers when the next tick is due."""
        deadline = self.conversation.deadline
        if deadline is None or deadline > self.elapsed_ms:
            return deadline
        self._transition(commands.Tick(), time.perf_counter())
        return self.conversation.deadline

    def _arm(self, deadline: int | None) -> None:
        """A timer that rings too early stays: it is armed again then, where a new one for each command would cost more."""
        if deadline is None or self.conversation.state.closing or (self._timer is not None and self._rings_at <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = deadline
        delay = max(0.001, -(-(self._born + (deadline + 1) / 1000) // GRID_S) * GRID_S - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._arrived.set()

    def _transition(self, command: commands.Command, at: float) -> None:
        for effect in self.conversation.receive(command, self.elapsed_ms):
            match effect:
                case fx.Relay():
                    self._relay(effect, at)
                case fx.Grant() if effect.stage in self.links:
                    self.links[effect.stage].grant(effect)
                case fx.Mute() if self.outbound is not None:
                    self.outbound.mute(effect.response_id)
                case fx.Grant() | fx.Mute():
                    pass  # nobody is there; credit is told to a stage when it is
                case fx.Unhear():
                    self.rehearsal.unhear(effect.position)
                case fx.Emit(seq, event):
                    entry = _encode((seq, type(event).__name__)), _encode(event)
                    self._pending_bytes += len(entry[1])
                    self._gather(Performance(effect, at, entry))
                case _:
                    self._gather(Performance(effect, at))

    def _relay(self, effect: fx.Relay, at: float) -> None:
        if effect.edge == "client":
            self.rehearsal.keep(effect)
        if (link := self.links.get(effect.stage)) is not None:
            link.relay(effect, at)

    def _gather(self, performance: Performance) -> None:
        self._pending.append(performance)
        if isinstance(performance.effect, fx.Ack):
            self._commit_within(LINGER_S)
        else:
            self._dirty.set()

    # commit, then act

    async def _commit(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            if self._commit_timer is not None:
                self._commit_timer.cancel()
                self._commit_timer = None
            batch, self._pending, self._pending_bytes = self._pending, [], 0
            self._taken.set()
            if not batch and not self._behind and not self._owed:
                continue
            self._owed = False
            entries = [each.entry for each in batch if each.entry is not None]
            first_seq, last_seq = self.conversation.state.seq + 1 - len(entries), self.conversation.state.seq
            if first_seq != self._next_seq:  # it goes on above what the client was told and the store forgot
                self._checkpointer.forget()
                self._log.begin_anew()
            self._next_seq = last_seq + 1
            started = time.perf_counter()
            crash.here("before_commit")
            try:
                durable = await self._log.commit(first_seq, entries, self._checkpointer.take(), self.acked_seq)
            except StaleLease as lost:
                self.superseded(closed=lost.closed)
                return
            crash.here("after_commit")
            metrics.COMMIT_SECONDS.observe(time.perf_counter() - started)
            self._committed(durable)
            for each in batch:
                if not await self._ours():
                    return
                self._perform(each.effect, each.at, durable)

    def _commit_within(self, seconds: float) -> None:
        if self._commit_timer is None:
            self._commit_timer = asyncio.get_running_loop().call_later(seconds, self._dirty.set)

    def _committed(self, durable: bool) -> None:
        if durable == self._behind and self.outbound is not None and self._beyond is not None:
            told = self._beyond.durability(durable)
            if told and not self.outbound.put(Frame(told, "", 0.0, "Durability")):
                self.outbound.overflow()
        self._behind = not durable
        if durable:
            return
        self._checkpointer.forget()
        self._commit_within(CATCH_UP_S)
        if self._log.overdue and not self.conversation.state.draining:
            self.put(commands.Drain())

    def _perform(self, effect: fx.Effect, at: float, durable: bool) -> None:
        match effect:
            case fx.Emit():
                self._emit(effect, at, durable)
            case fx.Order() if effect.stage in self.links:
                self.links[effect.stage].order(effect, at)
                crash.here("after_stage_send")
            case fx.Ack() if effect.stage in self.links:
                crash.here("before_ack")
                self.links[effect.stage].ack(effect.position)
            case fx.Replace():
                self._shell.replace(effect)
            case fx.Vacate():
                self._shell.vacate(effect)
            case fx.Close():
                self.end(effect.code, effect.reason)

    def _emit(self, effect: fx.Emit, at: float, durable: bool) -> None:
        event = effect.event
        self._count(event, at)
        if self.outbound is None or (self._beyond is not None and not self._beyond.hears(event)):
            return
        response_id, plays_s = "", 0.0
        if isinstance(event, events.AudioDelta):
            response_id, plays_s = event.response_id, self.conversation.config.output_format.seconds(event.data)
        seq = effect.seq if durable else None
        skipped = self._beyond.skipped(seq) if response_id and self._beyond is not None else ""
        frame = Frame(self._render(event, seq).decode(), response_id, at, type(event).__name__, skipped, plays_s=plays_s)
        if not self.outbound.put(frame):
            self.outbound.overflow()
        elif isinstance(event, events.ResponseDone):
            self.outbound.settle(event.response.id)

    def _count(self, event: events.Event, at: float) -> None:
        if isinstance(event, events.ResponseDone):
            metrics.RESPONSES.labels(event.response.status).inc()
        elif isinstance(event, events.Error):
            metrics.REFUSALS.labels(event.code).inc()
        elif isinstance(event, events.SpeechStopped) and self.outbound is not None:
            self.outbound.turn_ended_at = at
