"""The watch over replicas, against a real gRPC server on a thread of its own."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from parley_stage.v1 import stage_pb2 as pb
from parley_stage.v1 import stage_pb2_grpc

from gateway.pool import StagePool
from gateway.pulse import PulseWatch

TIMEOUT_S = 0.4
SERVER = """
import time
from concurrent.futures import ThreadPoolExecutor
import grpc
from parley_stage.v1 import stage_pb2 as pb, stage_pb2_grpc

class Heart(stage_pb2_grpc.StageServicer):
    def Pulse(self, request, context):
        print(flush=True)
        while True:
            yield pb.PulseResponse(replica_id="r")
            time.sleep(0.05)

server = grpc.server(ThreadPoolExecutor(2))
stage_pb2_grpc.add_StageServicer_to_server(Heart(), server)
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
server.wait_for_termination()
"""


class Heart(stage_pb2_grpc.StageServicer):
    """Beats until it is told to stand still; the stream stays open."""

    def __init__(self) -> None:
        self.frozen, self.over, self.draining, self.beats = threading.Event(), threading.Event(), threading.Event(), 0

    def Pulse(self, request: pb.PulseRequest, context: Any) -> Iterator[pb.PulseResponse]:
        while not self.over.wait(0.05):
            if not self.frozen.is_set():
                self.beats += 1
                yield pb.PulseResponse(replica_id="r", draining=self.draining.is_set())


@pytest.fixture
def heart() -> Iterator[tuple[Heart, str]]:
    server, made = grpc.server(ThreadPoolExecutor(4)), Heart()
    stage_pb2_grpc.add_StageServicer_to_server(made, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield made, f"127.0.0.1:{port}"
    made.over.set()
    server.stop(None).wait()


@pytest.fixture
async def watch() -> AsyncIterator[PulseWatch]:
    """One that would wait for a minute before it calls a silent replica lost."""
    pool = StagePool()
    made = PulseWatch(pool.stub, "gw_test", 60.0, 30.0)
    yield made
    await made.close()
    await pool.close()


async def until_beaten(made: Heart, count: int) -> None:
    async with asyncio.timeout(30):
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
    async with asyncio.timeout(30):
        await lost.wait()
    assert time.monotonic() - frozen_at > TIMEOUT_S / 2
    await watch.close()
    await pool.close()


@pytest.mark.behaviour("X3")
@pytest.mark.parametrize("missed_s", [0.0, 0.2])
async def test_a_gateway_that_stood_still_about_as_long_as_the_timeout_blames_nobody(heart: tuple[Heart, str], missed_s: float) -> None:
    """The beats of that time have arrived and wait to be read when the time for them is over."""
    made, address = heart
    pool, lost = StagePool(), asyncio.Event()
    watch = PulseWatch(pool.stub, "gw_test", TIMEOUT_S, 30.0)
    watch.care(address, "key", "asr", lambda why: lost.set())
    await until_beaten(made, 3)
    for _ in range(3):
        asyncio.get_running_loop().call_soon(time.sleep, TIMEOUT_S + missed_s)
        await until_beaten(made, made.beats + 6)
    assert not lost.is_set()
    await watch.close()
    await pool.close()


@pytest.mark.behaviour("X5")
async def test_a_replica_that_drains_says_so_to_all_who_care(heart: tuple[Heart, str], watch: PulseWatch) -> None:
    made, address = heart
    lost, told = asyncio.Event(), [asyncio.Event(), asyncio.Event()]
    for key, event in enumerate(told):
        watch.care(address, key, "asr", lambda why: lost.set(), event.set)
    await until_beaten(made, 3)
    assert not any(event.is_set() for event in told)
    made.draining.set()
    async with asyncio.timeout(30):
        await asyncio.gather(*(event.wait() for event in told))
    assert not lost.is_set()


@pytest.mark.behaviour("X3")
async def test_a_process_that_was_killed_is_lost_at_once(watch: PulseWatch) -> None:
    """Its connections are reset and nobody listens any more: no timeout has to run out."""
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVER, stdout=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    port, lost, why = int(await child.stdout.readline()), asyncio.Event(), []
    watch.care(f"127.0.0.1:{port}", "key", "asr", lambda reason: (why.append(reason), lost.set()))
    await child.stdout.readline()  # it has begun to beat
    child.kill()
    async with asyncio.timeout(30):
        await lost.wait()
    assert why[0] == "gone"
    await child.wait()
