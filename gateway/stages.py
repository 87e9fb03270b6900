"""The one stage client: a stream for each (session, stage), all of a replica carried by one call.

The end of a stream is not the end of a session: the link attaches again, learns the stage's watermarks, and sends again what they do
not cover.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable

import grpc
import structlog
from parley_stage.v1 import stage_pb2 as pb

from . import metrics, translate
from .carrier import Stream
from .conversation.commands import Command, StageAttached, StageLost
from .conversation.effects import Grant, Order, Relay
from .pool import Replica
from .unaccepted import Sending, Unaccepted, commits, sending

CONTRACT_VERSION = 1
ATTACH_TRIES = 3
ATTACH_TIMEOUT_S = 0.5
REST_S = 0.1
"""Between two attaches of a stage whose stream ends again and again."""
COMMIT_LAG_BYTES = 1024 * 1024
"""Client audio that may be on its way to a stage when a commit follows it: with more, the stage may yet turn some of it back."""
log = structlog.get_logger()


class StageRefused(Exception):
    """A stage would not open or answer: code is a StageError.Code name."""

    def __init__(self, stage: str, code: str, message: str) -> None:
        super().__init__(f"{stage}: {message}")
        self.stage, self.code, self.message = stage, code, message

    @property
    def elsewhere(self) -> bool:
        """Another replica might take the session."""
        return self.code in ("UNAVAILABLE", "DRAINING", "RESOURCE_EXHAUSTED")


class StageLink:
    """One stage of one session."""

    def __init__(self, stage: str, replica: Replica, authority: pb.Authority, base: int = 0) -> None:
        """`base`: output positions that earlier placements of the stage used up; the core counts on from there."""
        self.stage, self.authority, self.base = stage, authority, base
        self._replica = replica
        self._put: Callable[[Command, float], None] = lambda command, at: None
        self._stale: Callable[[], None] = lambda: None
        self._stream: Stream | None = None
        self._first: Sending | None = None
        self._answer: asyncio.Future[pb.FromStage | None] | None = None
        self._early: list[tuple[pb.FromStage, float]] | None = []
        """What the stage says before somebody listens; None once somebody does."""
        self._flows = False
        """The stage holds the session for this stream: what waits may go."""
        self._queue: deque[Sending] = deque()
        self._unaccepted = Unaccepted()
        self._progress = asyncio.Event()
        self._granted_ms = 0
        self._received = 0
        self._turned_back = False
        self._acked = 0
        self._owes_ack = False
        self._closing = False
        self.refused = False
        """The stage lives, and cannot go on with this session."""
        self._closed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._attached_at = 0.0
        self._returning: asyncio.Task[None] | None = None

    @property
    def pending_bytes(self) -> int:
        """Sent and not accepted."""
        return self._unaccepted.size

    async def accepted_down_to(self, max_bytes: int) -> None:
        while self._unaccepted.size > max_bytes and not self._closing and not self._closed.done():
            self._progress.clear()
            await self._progress.wait()

    # commands

    async def open(self, opening: pb.Open, timeout_s: float) -> None:
        """Reserve the slot. Raises StageRefused; nothing is held then as far as the stage could say so."""
        answer = await self._begin(pb.ToStage(authority=self.authority, open=opening), timeout_s)
        if answer is None or answer.WhichOneof("event") != "opened":
            self._leave()
            raise _refused(self.stage, answer)

    async def attach(self, consumed: int, timeout_s: float) -> StageAttached:
        """Take the session over; `consumed` is a position of the core. Raises StageRefused: the stage is lost to us."""
        self._received = max(0, consumed - self.base)
        answer = await self._begin(self._attach_message(), timeout_s)
        if answer is None or answer.WhichOneof("event") != "attached":
            self._leave()
            raise _refused(self.stage, answer)
        marks = answer.attached.watermarks
        first_kept = self.base + answer.attached.first_kept
        return StageAttached(self.stage, answer.attached.epoch, dict(marks.edges), marks.command_number, first_kept)

    def listen(self, put: Callable[[Command, float], None], stale: Callable[[], None]) -> None:
        """From now on what the stage says goes into this mailbox; `stale` is called when it says that another gateway has the session."""
        self._put, self._stale = put, stale
        early, self._early = self._early or [], None
        for message, at in early:
            self._receive(message, at)
        self._flows = True
        self._attached_at = time.monotonic()
        if self._stream is not None:
            self._stream.wake()
        else:
            self._go_back()

    def relay(self, effect: Relay, at: float) -> None:
        self._send_until_accepted(translate.relay(effect, self.authority), at)

    def order(self, effect: Order, at: float) -> None:
        self._send_until_accepted(translate.order(effect, self.authority), at)

    def grant(self, effect: Grant) -> None:
        self._granted_ms = max(self._granted_ms, effect.granted_ms)
        self._send(self._credit())

    def ack(self, position: int) -> None:
        """Told a moment later, so that one word stands for all that was consumed meanwhile."""
        self._acked = position - self.base
        if not self._owes_ack and self._acked > 0:
            self._owes_ack = True
            if self._stream is not None:
                self._stream.later()

    async def close(self, reason: str, timeout_s: float) -> bool:
        """True when the stage confirmed that the slot is free."""
        self._closing = True
        if self._early is not None:
            self._leave()
            return await self.release(reason, timeout_s)
        self._send(pb.ToStage(authority=self.authority, close=pb.Close(reason=reason)))
        confirmed = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                confirmed = await asyncio.shield(self._closed)
        await self._stop()
        return confirmed or await self.release(reason, timeout_s)

    async def release(self, reason: str, timeout_s: float) -> bool:
        """Free the session without a stream."""
        request = pb.ReleaseRequest(authority=self.authority, stage=self.stage, reason=reason)
        try:
            answer = await self._replica.stub.Release(request, timeout=timeout_s)
        except grpc.aio.AioRpcError:
            return False
        return not answer.HasField("error")

    async def abandon(self) -> None:
        """Let go of the stream and nothing else: the session is another gateway's now, or the stage is lost."""
        self.hush()
        await self._stop()

    def hush(self) -> None:
        """At once nothing more leaves, and nothing more is heard."""
        self._closing = True
        self._stream_over(confirmed=False)
        self._leave()

    def lost(self, why: str) -> None:
        """The replica does not answer any more: not waited for."""
        if not self._closing:
            self._closing = True
            self._stream_over(confirmed=False)
            self._put(StageLost(self.stage, why), time.perf_counter())

    async def _stop(self) -> None:
        if self._returning is not None:
            self._returning.cancel()
            await asyncio.gather(self._returning, return_exceptions=True)
        self._leave()

    # the stream

    def next(self) -> Sending | None:
        """What goes to the stage next; None: nothing for now."""
        if self._first is not None:
            first, self._first = self._first, None
            return first
        if self._flows and self._queue and not self._must_wait(self._queue[0].message):
            return self._queue.popleft()
        return None

    def due(self) -> None:
        """The stage is to hear what it may forget."""
        if self._owes_ack:
            self._owes_ack = False
            self._send(pb.ToStage(authority=self.authority, ack=pb.Ack(position=self._acked)))

    def receive(self, message: pb.FromStage, at: float) -> None:
        """The stage said this; `at`: perf_counter."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(message)
        elif self._early is not None:
            self._early.append((message, at))
        else:
            self._receive(message, at)

    def ended(self) -> None:
        """The stream is over: by the stage's will, or with all that it was carried with."""
        self._stream, self._flows = None, False
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)
        elif self._early is None and self._returning is None:
            self._go_back()

    def _leave(self) -> None:
        stream, self._stream, self._flows = self._stream, None, False
        if stream is not None:
            stream.leave()

    def _send_until_accepted(self, message: pb.ToStage, at: float) -> None:
        each = sending(message, at)
        self._unaccepted.add(each)
        self._queue.append(each)
        self._wake()

    def _send(self, message: pb.ToStage) -> None:
        self._queue.append(sending(message))
        self._wake()

    def _wake(self) -> None:
        if self._stream is not None:
            self._stream.wake()

    def _credit(self) -> pb.ToStage:
        return pb.ToStage(authority=self.authority, credit=pb.Credit(granted_ms=self._granted_ms))

    def _must_wait(self, message: pb.ToStage) -> bool:
        """A commit travels on another edge than the audio that it bounds, and must not overtake it."""
        if not self._turned_back and self._unaccepted.size <= COMMIT_LAG_BYTES:
            return False
        return commits(message) and (self._turned_back or self._unaccepted.before(message) > COMMIT_LAG_BYTES)

    def _receive(self, message: pb.FromStage, at: float) -> None:
        kind = message.WhichOneof("event")
        if self._closing and kind != "closed":
            return  # a lost stage that still speaks would use up positions of its successor
        match kind:
            case "chunk":
                if message.chunk.position > self._received:
                    self._received = message.chunk.position
                    self._put(translate.chunk(self.stage, message.chunk, self.base), at)
            case "unit_done":
                self._put(translate.unit(self.stage, message.unit_done), at)
            case "accepted":
                self._unaccepted.trim(message.accepted.watermarks)
                self._progress.set()
                self._wake()
                self._put(translate.accepted(self.stage, message.accepted.watermarks), at)
            case "updated":
                self._put(translate.updated(self.stage, message.updated), at)
            case "gap":
                self._turned_back = False
                self._resend()
            case "closed":
                self._stream_over(confirmed=True)
            case "error" if message.error.code == pb.StageError.CODE_LIMIT_EXCEEDED and message.error.param == "pending_append_bytes":
                self._turned_back = True  # a gap will tell when to send again
                metrics.TURNED_BACK.labels(self.stage).inc()
            case "error":
                self._failed(message.error, at)

    def _failed(self, error: pb.StageError, at: float) -> None:
        metrics.STAGE_ERRORS.labels(self.stage, pb.StageError.Code.Name(error.code)).inc()
        log.warning("stage error", stage=self.stage, session=self.authority.session_id, code=pb.StageError.Code.Name(error.code))
        if error.code == pb.StageError.CODE_STALE_AUTHORITY:
            self._superseded()
        elif error.session_ended and not self._closing:
            self.refused = True
            self.lost(error.message)
        elif not self._closing:
            self._put(translate.failed(self.stage, error), at)

    def _stream_over(self, *, confirmed: bool) -> None:
        """Nothing comes any more: whoever waits need not."""
        self._progress.set()
        if not self._closed.done():
            self._closed.set_result(confirmed)

    def _resend(self) -> None:
        """All that is not accepted goes out again, in the order in which it first did; the stage drops what it has by then."""
        rest = [each for each in self._queue if each.message.WhichOneof("command") in ("credit", "ack", "close")]
        self._queue = deque([*rest, *(each._replace(at=0.0) for each in self._unaccepted.sent)])
        self._wake()

    async def _begin(self, first: pb.ToStage, timeout_s: float) -> pb.FromStage | None:
        """The answer to the first message of a new stream; None when there is none in time, and then no stream."""
        self._first, self._answer = sending(first), asyncio.get_running_loop().create_future()
        try:
            self._stream = self._replica.carrier().board(self)
            async with asyncio.timeout(timeout_s):
                return await self._answer
        except TimeoutError:
            self._leave()
            return None
        except BaseException:
            self._leave()
            raise
        finally:
            self._first = self._answer = None

    def _go_back(self) -> None:
        if self._closing:
            self._stream_over(confirmed=False)
        else:
            self._returning = asyncio.create_task(self._go_back_to_it(), name=f"stage {self.stage}")

    async def _go_back_to_it(self) -> None:
        """Until the stage has the session on a new stream, or says that it has it no more, or says nothing."""
        try:
            while self._stream is None:
                await asyncio.sleep(self._attached_at + REST_S - time.monotonic())
                if self._closing or not await self._attach():
                    self._stream_over(confirmed=False)
                    if not self._closing:
                        self._put(StageLost(self.stage, "unreachable"), time.perf_counter())
                    return
        finally:
            self._returning = None

    async def _attach(self) -> bool:
        """Take the session up again on a new stream; False when the stage does not hold it or does not answer."""
        for attempt in range(ATTACH_TRIES):
            answer = await self._begin(self._attach_message(), ATTACH_TIMEOUT_S)
            if self._closing:
                return False
            if answer is None:
                await asyncio.sleep(0.1 * (attempt + 1))
                continue
            if answer.WhichOneof("event") != "attached":
                self._leave()
                if answer.WhichOneof("event") == "error":
                    self._refused_again(answer.error)
                return False
            self._take_up(answer.attached)
            return True
        return False

    def _refused_again(self, error: pb.StageError) -> None:
        if error.code == pb.StageError.CODE_STALE_AUTHORITY:
            self._superseded()

    def _superseded(self) -> None:
        metrics.FENCED.labels("stage").inc()
        self._closing = True
        self._stale()

    def _attach_message(self) -> pb.ToStage:
        attach = pb.Attach(stage=self.stage, contract_version=CONTRACT_VERSION, consumed=self._received)
        return pb.ToStage(authority=self.authority, attach=attach)

    def _take_up(self, attached: pb.Attached) -> None:
        self._unaccepted.trim(attached.watermarks)
        self._progress.set()
        self._turned_back, self._flows = False, self._stream is not None
        self._attached_at = time.monotonic()
        self._resend()
        self._send(self._credit())
        self.due()
        metrics.REATTACHES.labels(self.stage).inc()


def _refused(stage: str, answer: pb.FromStage | None) -> StageRefused:
    if answer is not None and answer.WhichOneof("event") == "error":
        return StageRefused(stage, pb.StageError.Code.Name(answer.error.code).removeprefix("CODE_"), answer.error.message)
    return StageRefused(stage, "UNAVAILABLE", "no answer")
