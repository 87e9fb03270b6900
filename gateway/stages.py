"""The one stage client: a stream for each (session, stage), over one channel a replica.

The end of a stream is not the end of a session: the link attaches again, learns the stage's watermarks, and sends again what they do
not cover.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import grpc
import structlog
from parley_stage.v1 import stage_pb2 as pb
from parley_stage.v1 import stage_pb2_grpc

from . import metrics, translate
from .conversation.commands import Command, StageAttached, StageLost
from .conversation.effects import Grant, Order, Relay

CONTRACT_VERSION = 1
ATTACH_TRIES = 3
ATTACH_TIMEOUT_S = 0.5
ACK_INTERVAL_S = 0.5
"""Longest wait before a stage hears which of its outputs it may forget."""
COMMIT_LAG_BYTES = 1024 * 1024
"""Client audio that may be on its way to a stage when a commit follows it: with more, the stage may yet turn some of it back."""
CHANNEL_OPTIONS = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),  # else its default of 60 s wins over keepalive_timeout
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", 1024 * 1024),
]
log = structlog.get_logger()


class StageRefused(Exception):
    """A stage would not open or answer: code is a StageError.Code name."""

    def __init__(self, stage: str, code: str, message: str) -> None:
        super().__init__(f"{stage}: {message}")
        self.stage, self.code, self.message = stage, code, message


class Tls(NamedTuple):
    """PEM bytes with which the gateway shows itself to stages, and the name that their certificates bear (pods are dialled by address)."""

    certificate: bytes
    key: bytes
    ca: bytes
    server_name: str


class StagePool:
    """Channels to replicas, one an address. With `tls` they are mutually authenticated, without it in the clear."""

    def __init__(self, tls: Tls | None = None) -> None:
        self._tls = tls
        self._channels: dict[str, grpc.aio.Channel] = {}

    def stub(self, address: str) -> stage_pb2_grpc.StageStub:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._dial(address)
        return stage_pb2_grpc.StageStub(channel)  # type: ignore[no-untyped-call]

    def _dial(self, address: str) -> grpc.aio.Channel:
        if self._tls is None:
            return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        credentials = grpc.ssl_channel_credentials(self._tls.ca, self._tls.key, self._tls.certificate)
        named = [("grpc.ssl_target_name_override", self._tls.server_name)] if self._tls.server_name else []
        return grpc.aio.secure_channel(address, credentials, options=[*CHANNEL_OPTIONS, *named])

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        await asyncio.gather(*(channel.close() for channel in channels.values()))


@dataclass(slots=True)
class _Unaccepted:
    """Sent appends and orders that the stage has not confirmed, in order of sending."""

    sent: deque[tuple[pb.ToStage, int]] = field(default_factory=deque)
    """Each with its size: to measure a message is to encode it."""
    size: int = 0

    def add(self, message: pb.ToStage) -> None:
        size = message.ByteSize()
        self.sent.append((message, size))
        self.size += size

    def trim(self, marks: pb.Watermarks) -> None:
        edges = marks.edges
        while self.sent and _covered(self.sent[0][0], edges, marks.command_number):
            self.size -= self.sent.popleft()[1]

    def before(self, message: pb.ToStage) -> int:
        """Bytes of what was sent before it; 0 when it was accepted meanwhile."""
        total = 0
        for each, size in self.sent:
            if each is message:
                return total
            total += size
        return 0


def _covered(message: pb.ToStage, edges: Mapping[str, int], command_number: int) -> bool:
    # the number of an order that was turned back lies below the highest obeyed one: on an edge only positions tell
    if message.HasField("append"):
        return message.append.position <= edges.get(message.append.edge, 0)
    return message.command_number <= command_number


def _commits(message: pb.ToStage) -> bool:
    return message.append.payload.control.kind == pb.Control.KIND_COMMIT


class StageLink:
    """One stage of one session."""

    def __init__(self, stage: str, stub: stage_pb2_grpc.StageStub, authority: pb.Authority, base: int = 0) -> None:
        """`base`: output positions that earlier placements of the stage used up; the core counts on from there."""
        self.stage, self.authority, self.base = stage, authority, base
        self._stub = stub
        self._put: Callable[[Command, float], None] = lambda command, at: None
        self._stale: Callable[[], None] = lambda: None
        self._call: grpc.aio.StreamStreamCall | None = None
        self._queue: deque[tuple[pb.ToStage, float]] = deque()
        self._wake = asyncio.Event()
        self._unaccepted = _Unaccepted()
        self._progress = asyncio.Event()
        self._granted_ms = 0
        self._received = 0
        self._turned_back = False
        self._acked = 0
        self._ack_timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._closed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

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
        call = self._stub.Converse()
        message = pb.ToStage(authority=self.authority, open=opening)
        try:
            async with asyncio.timeout(timeout_s):
                await call.write(message)
                answer = await call.read()
        except (TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError) as failure:
            call.cancel()
            raise StageRefused(self.stage, "UNAVAILABLE", type(failure).__name__) from failure
        if answer is grpc.aio.EOF or answer.WhichOneof("event") != "opened":
            call.cancel()
            raise _refused(self.stage, answer)
        self._call = call

    async def attach(self, consumed: int, timeout_s: float) -> StageAttached:
        """Take the session over; `consumed` is a position of the core. Raises StageRefused: the stage is lost to us."""
        self._received = max(0, consumed - self.base)
        call = self._stub.Converse()
        try:
            async with asyncio.timeout(timeout_s):
                await call.write(self._attach_message())
                answer = await call.read()
        except (TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError) as failure:
            call.cancel()
            raise StageRefused(self.stage, "UNAVAILABLE", type(failure).__name__) from failure
        if answer is grpc.aio.EOF or answer.WhichOneof("event") != "attached":
            call.cancel()
            raise _refused(self.stage, answer)
        self._call = call
        marks = answer.attached.watermarks
        first_kept = self.base + answer.attached.first_kept
        return StageAttached(self.stage, answer.attached.epoch, dict(marks.edges), marks.command_number, first_kept)

    def listen(self, put: Callable[[Command, float], None], stale: Callable[[], None]) -> None:
        """From now on what the stage says goes into this mailbox; `stale` is called when it says that another gateway has the session."""
        self._put, self._stale = put, stale
        self._task = asyncio.create_task(self._run(), name=f"stage {self.stage}")

    def relay(self, effect: Relay, at: float) -> None:
        message = translate.relay(effect)
        message.authority.CopyFrom(self.authority)
        self._unaccepted.add(message)
        self._send(message, at)

    def order(self, effect: Order, at: float) -> None:
        message = translate.order(effect)
        message.authority.CopyFrom(self.authority)
        self._unaccepted.add(message)
        self._send(message, at)

    def grant(self, effect: Grant) -> None:
        self._granted_ms = max(self._granted_ms, effect.granted_ms)
        self._send(pb.ToStage(authority=self.authority, credit=pb.Credit(granted_ms=self._granted_ms)), 0.0)

    def ack(self, position: int) -> None:
        """Told a moment later, so that one word stands for all that was consumed meanwhile."""
        self._acked = position - self.base
        if self._ack_timer is None and self._acked > 0:
            self._ack_timer = asyncio.get_running_loop().call_later(ACK_INTERVAL_S, self._tell_acked)

    def _tell_acked(self) -> None:
        self._ack_timer = None
        self._send(pb.ToStage(authority=self.authority, ack=pb.Ack(position=self._acked)), 0.0)

    async def close(self, reason: str, timeout_s: float) -> bool:
        """True when the stage confirmed that the slot is free."""
        self._closing = True
        if self._task is None:
            if self._call is not None:
                self._call.cancel()
            return await self.release(reason, timeout_s)
        self._send(pb.ToStage(authority=self.authority, close=pb.Close(reason=reason)), 0.0)
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
            answer = await self._stub.Release(request, timeout=timeout_s)
        except grpc.aio.AioRpcError:
            return False
        return not answer.HasField("error")

    async def abandon(self) -> None:
        """Let go of the stream and nothing else: the session is another gateway's now, or the stage is lost."""
        self._closing = True
        self._stream_over(confirmed=False)
        await self._stop()

    def lost(self, why: str) -> None:
        """The replica does not answer any more: not waited for."""
        if not self._closing:
            self._closing = True
            self._stream_over(confirmed=False)
            self._put(StageLost(self.stage, why), time.perf_counter())

    async def _stop(self) -> None:
        if self._ack_timer is not None:
            self._ack_timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._call is not None:
            self._call.cancel()

    # the stream

    def _send(self, message: pb.ToStage, at: float) -> None:
        self._queue.append((message, at))
        self._wake.set()

    async def _run(self) -> None:
        while True:
            assert self._call is not None
            writer = asyncio.create_task(self._write(self._call))
            try:
                await self._read(self._call)
            finally:
                writer.cancel()
            if self._closing or not await self._attach():
                self._stream_over(confirmed=False)
                if not self._closing:
                    self._put(StageLost(self.stage, "unreachable"), time.perf_counter())
                return

    async def _write(self, call: grpc.aio.StreamStreamCall) -> None:
        try:
            while True:
                while self._queue and not self._must_wait(self._queue[0][0]):
                    message, at = self._queue.popleft()
                    await call.write(message)
                    if at:
                        metrics.TO_STAGE.observe(time.perf_counter() - at)
                self._wake.clear()
                await self._wake.wait()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the reader meets the end of the stream, too, and decides

    def _must_wait(self, message: pb.ToStage) -> bool:
        """A commit travels on another edge than the audio that it bounds, and must not overtake it."""
        if not self._turned_back and self._unaccepted.size <= COMMIT_LAG_BYTES:
            return False
        return _commits(message) and (self._turned_back or self._unaccepted.before(message) > COMMIT_LAG_BYTES)

    async def _read(self, call: grpc.aio.StreamStreamCall) -> None:
        while True:
            try:
                message = await call.read()
            except grpc.aio.AioRpcError as failure:
                log.warning("stage stream failed", stage=self.stage, session=self.authority.session_id, code=failure.code().name)
                return
            if message is grpc.aio.EOF:
                return
            self._receive(message, time.perf_counter())

    def _receive(self, message: pb.FromStage, at: float) -> None:
        if self._closing and message.WhichOneof("event") != "closed":
            return  # a lost stage that still speaks would use up positions of its successor
        match message.WhichOneof("event"):
            case "chunk":
                if message.chunk.position > self._received:
                    self._received = message.chunk.position
                    self._put(translate.chunk(self.stage, message.chunk, self.base), at)
            case "accepted":
                self._unaccepted.trim(message.accepted.watermarks)
                self._progress.set()
                self._wake.set()
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
            self._closing = True
            self._stale()
        elif error.session_ended and not self._closing:
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
        rest = [(message, at) for message, at in self._queue if message.WhichOneof("command") in ("credit", "ack", "close")]
        self._queue = deque([*rest, *((message, 0.0) for message, _ in self._unaccepted.sent)])
        self._wake.set()

    async def _attach(self) -> bool:
        """Take the session up again on a new stream; False when the stage does not hold it or does not answer."""
        attach = self._attach_message()
        for attempt in range(ATTACH_TRIES):
            call = self._stub.Converse()
            try:
                async with asyncio.timeout(ATTACH_TIMEOUT_S):
                    await call.write(attach)
                    answer = await call.read()
            except (TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
                call.cancel()
                await asyncio.sleep(0.1 * (attempt + 1))
                continue
            if answer is grpc.aio.EOF or answer.WhichOneof("event") != "attached":
                call.cancel()
                if isinstance(answer, pb.FromStage) and answer.WhichOneof("event") == "error":
                    self._refused_again(answer.error)
                return False
            self._take_up(call, answer.attached)
            return True
        return False

    def _refused_again(self, error: pb.StageError) -> None:
        if error.code == pb.StageError.CODE_STALE_AUTHORITY:
            self._closing = True
            self._stale()

    def _attach_message(self) -> pb.ToStage:
        attach = pb.Attach(stage=self.stage, contract_version=CONTRACT_VERSION, consumed=self._received)
        return pb.ToStage(authority=self.authority, attach=attach)

    def _take_up(self, call: grpc.aio.StreamStreamCall, attached: pb.Attached) -> None:
        self._call = call
        self._unaccepted.trim(attached.watermarks)
        self._turned_back = False
        self._resend()
        self._send(pb.ToStage(authority=self.authority, credit=pb.Credit(granted_ms=self._granted_ms)), 0.0)
        metrics.REATTACHES.labels(self.stage).inc()


def _refused(stage: str, answer: object) -> StageRefused:
    if isinstance(answer, pb.FromStage) and answer.WhichOneof("event") == "error":
        return StageRefused(stage, pb.StageError.Code.Name(answer.error.code).removeprefix("CODE_"), answer.error.message)
    return StageRefused(stage, "UNAVAILABLE", "the stream ended")
