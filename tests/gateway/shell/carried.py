"""A stage replica that answers as a test tells it to, over real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from parley_stage.v1 import stage_pb2 as pb
from parley_stage.v1 import stage_pb2_grpc

from gateway.pool import Replica, StagePool


class Stream:
    """One numbered stream of a Carry call, from the stage's side."""

    def __init__(self, number: int, call: Call) -> None:
        self.number, self.call = number, call
        self.read: asyncio.Queue[pb.ToStage | None] = asyncio.Queue()

    async def next(self) -> pb.ToStage:
        async with asyncio.timeout(30):
            message = await self.read.get()
        assert message is not None, "the gateway left the stream"
        return message

    async def left(self) -> None:
        """Until the gateway has left it."""
        async with asyncio.timeout(30):
            while await self.read.get() is not None:
                pass

    def parcel(self, **event: Any) -> pb.FromStageParcel:
        return pb.FromStageParcel(stream=self.number, message=pb.FromStage(placement=1, **event))

    def say(self, **event: Any) -> None:
        self.call.write.put_nowait(pb.FromStageBatch(parcels=[self.parcel(**event)]))

    def end(self) -> None:
        self.call.write.put_nowait(pb.FromStageBatch(parcels=[pb.FromStageParcel(stream=self.number, end=pb.StreamEnd())]))


class Call:
    """One Carry call. None to `write` ends it."""

    def __init__(self) -> None:
        self.write: asyncio.Queue[pb.FromStageBatch | None] = asyncio.Queue()
        self.streams: dict[int, Stream] = {}
        self.batches: list[pb.ToStageBatch] = []
        self.over = asyncio.Event()


class Stage(stage_pb2_grpc.StageServicer):
    def __init__(self) -> None:
        self.streams: asyncio.Queue[Stream] = asyncio.Queue()
        self.calls: list[Call] = []
        self.releases: list[pb.ReleaseRequest] = []
        self.reads = asyncio.Event()
        self.reads.set()

    async def Carry(self, requests: AsyncIterator[pb.ToStageBatch], context: Any) -> AsyncIterator[pb.FromStageBatch]:
        call = Call()
        self.calls.append(call)
        reading = asyncio.create_task(self._read(requests, call))
        try:
            while (batch := await call.write.get()) is not None:
                yield batch
        finally:
            reading.cancel()
            call.over.set()

    async def _read(self, requests: AsyncIterator[pb.ToStageBatch], call: Call) -> None:
        async for batch in requests:
            call.batches.append(batch)
            for parcel in batch.parcels:
                self._deliver(parcel, call)
            await self.reads.wait()

    def _deliver(self, parcel: pb.ToStageParcel, call: Call) -> None:
        number = parcel.stream
        if parcel.HasField("end"):
            if number in call.streams:
                call.streams[number].read.put_nowait(None)
            return
        if number not in call.streams:
            assert number > max(call.streams, default=0), "a number came again"
            call.streams[number] = Stream(number, call)
            self.streams.put_nowait(call.streams[number])
        call.streams[number].read.put_nowait(parcel.message)

    async def Release(self, request: pb.ReleaseRequest, context: Any) -> pb.ReleaseResponse:
        self.releases.append(request)
        return pb.ReleaseResponse(released=True)

    async def stream(self) -> Stream:
        async with asyncio.timeout(30):
            return await self.streams.get()


@asynccontextmanager
async def replica() -> AsyncIterator[tuple[Stage, Replica]]:
    """The stage's side and the gateway's of one address."""
    server, made, pool = grpc.aio.server(), Stage(), StagePool()
    stage_pb2_grpc.add_StageServicer_to_server(made, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield made, pool.replica(f"127.0.0.1:{port}")
    await pool.close()
    await server.stop(None)
