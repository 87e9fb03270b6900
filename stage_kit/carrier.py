"""One Carry call: many streams, and what of all of them is written next."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from functools import partial
from typing import NamedTuple

from parley_stage.v1 import stage_pb2

from stage_kit.errors import Code, Refusal
from stage_kit.settings import Settings
from stage_kit.stream import Stream

REST_S_PER_STREAM, LEAST_REST_S, MOST_REST_S = 0.00005, 0.001, 0.010
"""A call with many streams rests between two batches, so that what comes meanwhile shares a write; with few it hardly does."""
PARCEL_BYTES = 32
"""More than a parcel adds to its message in a batch."""


class _Turn(NamedTuple):
    """What one stream puts into a batch: a message, or None for its end."""

    number: int
    message: stage_pb2.FromStage | None
    size: int


class Carrier:
    """Streams take turns, a message each; what gathers while a batch is written makes the next."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._streams: dict[int, Stream] = {}
        self._highest = 0
        self._ready: deque[int] = deque()
        self._marked: set[int] = set()
        self._left_over: _Turn | None = None
        self._wake = asyncio.Event()
        self._read_out = False
        self._ended = False
        self._gave_at = 0.0

    def stream(self, parcel: stage_pb2.ToStageParcel) -> Stream | None:
        """The stream that is to obey the parcel's message, a new one for a new number; None when nobody is."""
        number = parcel.stream
        if parcel.HasField("end"):
            self._leave(number)
            return None
        if number > self._highest:
            return self._begin(number, parcel.message.authority.placement)
        stream = self._streams.get(number)
        return stream if stream is not None and stream.open else None

    def read_out(self) -> None:
        """The caller will send nothing more; the call ends when all that its streams wait for was answered."""
        self._read_out = True
        for stream in list(self._streams.values()):
            stream.read_out()
        self._wake.set()

    def end(self) -> None:
        """The call is over: every stream is left."""
        self._ended = True
        for number in list(self._streams):
            self._leave(number)
        self._wake.set()

    async def next(self) -> stage_pb2.FromStageBatch | None:
        """The next batch to write; None at the end."""
        rest = self._gave_at + min(len(self._streams) * REST_S_PER_STREAM, MOST_REST_S) - time.monotonic()
        # what did not fit into the batch before is there already
        if rest > LEAST_REST_S and self._left_over is None:
            await asyncio.sleep(rest)
        while not self._ended:
            self._wake.clear()
            batch = self._gather()
            if batch.parcels:
                self._gave_at = time.monotonic()
                return batch
            if self._read_out and not self._streams:
                return None
            await self._wake.wait()
        return None

    def _begin(self, number: int, placement: int) -> Stream | None:
        settings, held = self._settings, len(self._streams)
        if held >= settings.carried_streams_count + settings.pending_replies_count:
            self.end()  # a caller that does not read even its refusals
            return None
        self._highest = number
        stream = self._streams[number] = Stream(settings.pending_replies_count, partial(self._mark, number))
        if held < settings.carried_streams_count:
            return stream
        full = Refusal(Code.CODE_LIMIT_EXCEEDED, "too many streams on this call", param="carried_streams_count", ends_stream=True)
        stream.refuse(full, placement, None)
        return None

    def _leave(self, number: int) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.leave()

    def _mark(self, number: int) -> None:
        if number not in self._marked:
            self._marked.add(number)
            self._ready.append(number)
            self._wake.set()

    def _gather(self) -> stage_pb2.FromStageBatch:
        batch, size = stage_pb2.FromStageBatch(), 0
        while (turn := self._left_over or self._take()) is not None:
            self._left_over = None
            if size and size + turn.size > self._settings.message_bytes // 2:
                self._left_over = turn
                break
            if turn.number not in self._streams:
                continue  # left by its caller while it waited for this batch
            size += turn.size
            if turn.message is not None:
                # half of what it takes to give the message to `add`
                batch.parcels.add(stream=turn.number).message.CopyFrom(turn.message)
            else:
                batch.parcels.add(stream=turn.number, end=stage_pb2.StreamEnd())
                self._leave(turn.number)
        return batch

    def _take(self) -> _Turn | None:
        """A message, or the end, of the stream whose turn it is."""
        while self._ready:
            number = self._ready.popleft()
            stream = self._streams.get(number)
            message = None if stream is None else stream.take()
            size = PARCEL_BYTES + (0 if message is None else message.ByteSize())
            if message is not None and size <= self._settings.message_bytes:
                self._ready.append(number)
                return _Turn(number, message, size)
            self._marked.discard(number)
            if stream is not None and (message is not None or stream.over):
                stream.end()  # if it was for a message that no call can carry: the other streams go on
                return _Turn(number, None, PARCEL_BYTES)
        return None
