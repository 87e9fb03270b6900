"""One Carry call to a replica: all sessions of this gateway there share it, each stage of each on a numbered stream of its own."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import NamedTuple, Protocol

import grpc
import structlog
from parley_stage.v1 import stage_pb2 as pb

from . import metrics
from .logs import describe
from .tenure import Tenure
from .unaccepted import Sending

BATCH_BYTES = 512 * 1024
MESSAGE_BYTES = 1024 * 1024
"""No replica takes more in one batch."""
PARCEL_BYTES = 32
"""More than a parcel adds to its message in a batch."""
REST_S_PER_RIDER, LEAST_REST_S, MOST_REST_S = 0.00005, 0.001, 0.010
"""A call with many riders rests between two batches, so that what comes meanwhile shares a write; with few it hardly does."""
LATER_S = 0.5
"""Longest wait of what waits for company: of an acknowledgement."""
_SENT, _RECEIVED = metrics.BATCHES.labels("to_stage"), metrics.BATCHES.labels("from_stage")
log = structlog.get_logger()


class Rider(Protocol):
    """Who speaks on a stream. Nothing here may wait."""

    def next(self) -> Sending | None:
        """What to send next; None: nothing for now."""

    def due(self) -> None:
        """What was left for later is to be said now."""

    def receive(self, message: pb.FromStage, at: float) -> None:
        """The stage said this; `at`: perf_counter."""

    def ended(self) -> None:
        """The stream, or the whole call, is over. Called once, and never after `leave`."""


class Carrier:
    """Riders take turns, a message each; what gathers while a batch is written makes the next. The call ends with its last rider."""

    def __init__(self, call: grpc.aio.StreamStreamCall, tenure: Tenure | None = None) -> None:
        """`tenure`: past its deadline nothing is written before the store was asked; who lost a session has left by then."""
        self._call, self._tenure = call, tenure
        self._riders: dict[int, Rider] = {}
        self._highest = 0
        self._ready: deque[int] = deque()
        self._marked: set[int] = set()
        self._later: dict[int, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._ends: list[int] = []
        self._left_over: tuple[int, Sending] | None = None
        self._wake = asyncio.Event()
        self.over = False
        self._tasks = [asyncio.create_task(self._read(), name="carrier reads"), asyncio.create_task(self._write(), name="carrier writes")]

    def board(self, rider: Rider) -> Stream:
        self._highest += 1
        self._riders[self._highest] = rider
        self.wake(self._highest)
        return Stream(self, self._highest)

    def wake(self, number: int) -> None:
        if number not in self._marked:
            self._marked.add(number)
            self._ready.append(number)
            self._wake.set()

    def later(self, number: int) -> None:
        self._later[number] = None
        if self._timer is None and not self.over:
            self._timer = asyncio.get_running_loop().call_later(LATER_S, self._is_later)

    def leave(self, number: int) -> None:
        if self._riders.pop(number, None) is None or self.over:
            return
        if not self._riders:
            self._end()
            return
        self._ends.append(number)
        self._wake.set()

    async def close(self) -> None:
        """Ends the call, and with it every stream."""
        self._end()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _is_later(self) -> None:
        self._timer = None
        later, self._later = self._later, {}
        for number in later:
            if (rider := self._riders.get(number)) is not None:
                rider.due()

    def _end(self) -> None:
        if self.over:
            return
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        self._call.cancel()
        for number in list(self._riders):
            self._ended(number)

    def _ended(self, number: int) -> None:
        if (rider := self._riders.pop(number, None)) is not None:
            rider.ended()
        if not self._riders:
            self._end()

    # out

    async def _write(self) -> None:
        try:
            while True:
                self._wake.clear()
                if self._tenure is not None and not self._tenure.holds():
                    await self._tenure.confirmed()
                batch, times = self._gather()
                if not batch.parcels:
                    await self._wake.wait()
                    continue
                _SENT.observe(len(batch.parcels))
                began = time.perf_counter()
                await self._call.write(batch)
                now = time.perf_counter()
                for at in times:
                    metrics.TO_STAGE.observe(now - at)
                rest = min(len(self._riders) * REST_S_PER_RIDER, MOST_REST_S) - (now - began)
                if rest > LEAST_REST_S:
                    await asyncio.sleep(rest)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the reader meets the end of the call, too, and what was said before it
        except Exception as failure:
            log.error("carrier failed", failure=describe(failure))
            self._end()

    def _gather(self) -> tuple[pb.ToStageBatch, list[float]]:
        batch, size = pb.ToStageBatch(), len(self._ends) * PARCEL_BYTES
        times: list[float] = []
        for number in self._ends:
            batch.parcels.add(stream=number, end=pb.StreamEnd())
        self._ends.clear()
        while (turn := self._left_over or self._take()) is not None:
            self._left_over = None
            number, (message, length, at) = turn
            if size and size + length > BATCH_BYTES:
                self._left_over = turn
                break
            if number not in self._riders:
                continue
            batch.parcels.add(stream=number, message=message)
            size += length + PARCEL_BYTES
            if at:
                times.append(at)
        return batch, times

    def _take(self) -> tuple[int, Sending] | None:
        """The next message of the rider whose turn it is."""
        while self._ready:
            number = self._ready.popleft()
            rider = self._riders.get(number)
            sending = None if rider is None else rider.next()
            if sending is None:
                self._marked.discard(number)
            elif sending.size + PARCEL_BYTES > MESSAGE_BYTES:
                self._marked.discard(number)
                self._ends.append(number)  # no call could carry it: the other streams go on
                self._ended(number)
            else:
                self._ready.append(number)
                return number, sending
        return None

    # in

    async def _read(self) -> None:
        try:
            while (batch := await self._call.read()) is not grpc.aio.EOF:
                at, count = time.perf_counter(), len(batch.parcels)
                _RECEIVED.observe(count)
                for parcel in batch.parcels:
                    self._deliver(parcel, at, alone=count == 1)
        except grpc.aio.AioRpcError as failure:
            log.warning("carrier failed", code=failure.code().name)
        finally:
            self._end()

    def _deliver(self, parcel: pb.FromStageParcel, at: float, *, alone: bool) -> None:
        rider = self._riders.get(parcel.stream)
        if rider is None:
            return
        if not parcel.HasField("message"):
            self._ended(parcel.stream)
            return
        try:
            rider.receive(parcel.message if alone else _detached(parcel.message), at)
        except Exception as failure:
            log.error("stream failed", failure=describe(failure))
            self._ends.append(parcel.stream)
            self._ended(parcel.stream)


class Stream(NamedTuple):
    """A rider's place on a carrier."""

    carrier: Carrier
    number: int

    def wake(self) -> None:
        """There may be something to send."""
        self.carrier.wake(self.number)

    def later(self) -> None:
        """There will be something to send, but it may wait for company."""
        self.carrier.later(self.number)

    def leave(self) -> None:
        """Nothing more is sent or received; the rider hears of no end."""
        self.carrier.leave(self.number)


def _detached(message: pb.FromStage) -> pb.FromStage:
    """Sound that waits for its time would keep the whole batch that it came in."""
    if not message.HasField("chunk"):
        return message
    copy = pb.FromStage()
    copy.CopyFrom(message)
    return copy
