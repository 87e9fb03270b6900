"""The watch over replicas, against a real gRPC server on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from parley_stage.v1 import stage_pb2 as pb
from parley_stage.v1 import stage_pb2_grpc

from gateway.pulse import PulseWatch
from gateway.stages import StagePool

TIMEOUT_S = 0.4


class Heart(stage_pb2_grpc.StageServicer):
    """Beats until it is told to stand still; the stream stays open."""

    def __init__(self) -> None:
        self.frozen, self.over, self.beats = threading.Event(), threading.Event(), 0

    def Pulse(self, request: pb.PulseRequest, context: Any) -> Iterator[pb.PulseResponse]:
        while not self.over.wait(0.05):
            if not self.frozen.is_set():
                self.beats += 1
                yield pb.PulseResponse(replica_id="r")


@pytest.fixture
def heart() -> Iterator[tuple[Heart, str]]:
    server, made = grpc.server(ThreadPoolExecutor(4)), Heart()
    stage_pb2_grpc.add_StageServicer_to_server(made, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield made, f"127.0.0.1:{port}"
    made.over.set()
    server.stop(None).wait()


async def until_beaten(made: Heart, count: int) -> None:
    async with asyncio.timeout(5):
        while True:
            if made.beats >= count:
                return
            await asyncio.sleep(0.01)


@pytest.mark.behaviour("X3")
async def test_a_replica_that_stands_still_is_lost_and_a_gateway_that_did_blames_nobody(heart: tuple[Heart, str]) -> None:
    made, address = heart
    pool, lost = StagePool(), asyncio.Event()
    watch = PulseWatch(pool.stub, "gw_test", TIMEOUT_S, 30.0)
    watch.care(address, "key", "asr", lambda why: lost.set())
    await until_beaten(made, 3)
    # this process sleeps as a whole, like one that was stopped and goes on
    asyncio.get_running_loop().call_soon(time.sleep, 2 * TIMEOUT_S + 0.3)
    await until_beaten(made, made.beats + 20)
    assert not lost.is_set()
    made.frozen.set()
    frozen_at = time.monotonic()
    async with asyncio.timeout(5):
        await lost.wait()
    assert time.monotonic() - frozen_at > TIMEOUT_S / 2
    await watch.close()
    await pool.close()
