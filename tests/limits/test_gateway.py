"""Limits of a gateway before real processes: what it waits for a stage or a client, what a frame may hold."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from parley_stage.v1 import stage_pb2 as pb
from parley_stage.v1 import stage_pb2_grpc
from websockets.exceptions import InvalidStatus

from gateway.conversation.config import SessionConfig
from gateway.conversation.effects import Replace
from gateway.opening import Opened, Opener
from gateway.pool import StagePool
from gateway.pulse import PulseWatch
from gateway.settings import Settings
from gateway.stages import StageRefused
from session_store import Lease, ReplicaBeat, StageOffer, Store
from session_store.errors import AtCapacity
from tests.e2e.conftest import MakeHouse
from tests.failover.conftest import PATIENT, Dial
from tests.failover.line import until, until_recorded
from tests.gateway.conversation.support import GRAPH
from tests.support.checks import check_whole
from tests.support.house import SERVICES, STAGES, House

OPEN_S = ATTACH_S = CLOSE_S = 2.5
WAKE_S = 0.2
PING_S, PONG_S = 0.4, 0.6
EVENT_BYTES, FRAME_BYTES = 2048, 4096
LASTING = {"PARLEY_REPLICA_TTL_MS": "60000"}
"""A replica that stands still stays in the registry, and what it holds with it."""
BRIEF = {
    **PATIENT,
    **LASTING,
    "PARLEY_GRACE_MS": "4000",
    "PARLEY_OPEN_TIMEOUT_MS": str(int(OPEN_S * 1000)),
    "PARLEY_ATTACH_TIMEOUT_MS": str(int(ATTACH_S * 1000)),
    "PARLEY_CLOSE_TIMEOUT_MS": str(int(CLOSE_S * 1000)),
    "PARLEY_STAGE_WAIT_MS": "0",
    "PARLEY_WS_PING_INTERVAL_S": str(PING_S),
    "PARLEY_WS_PING_TIMEOUT_S": str(PONG_S),
    "PARLEY_MAX_EVENT_BYTES": str(EVENT_BYTES),
    "PARLEY_MAX_FRAME_BYTES": str(FRAME_BYTES),
}


@pytest.fixture(scope="module")
def brief(make_house: MakeHouse) -> House:
    """Two gateways with little patience, and a vocoder that can be stopped alone."""
    return make_house(services=SERVICES, gateways=2, gateway=BRIEF, service_env=dict.fromkeys(SERVICES, LASTING))


@asynccontextmanager
async def silent(house: House, stage: str = "vocoder") -> AsyncIterator[Callable[[], None]]:
    """The service stands still while inside, or until it is woken by calling what is given."""
    child = house.services[stage]

    def wake() -> None:
        child.signal(signal.SIGCONT)

    child.signal(signal.SIGSTOP)
    try:
        yield wake
    finally:
        wake()


@pytest.mark.behaviour("X14")
async def test_an_open_waits_for_a_silent_stage_as_long_as_it_may(brief: House, dial: Dial) -> None:
    async with silent(brief) as wake:
        asyncio.get_running_loop().call_later(WAKE_S, wake)
        line = await dial(brief.realtime)
        check_whole(line, await line.reply("hello", instructions="words=1"), 1)
    await line.socket.close()
    await brief.wait_free()
    began = time.monotonic()
    async with silent(brief):
        with pytest.raises(InvalidStatus) as refused:
            await dial(brief.realtime)
        assert refused.value.response.status_code == 503 and time.monotonic() - began >= OPEN_S
    await brief.wait_free()


@pytest.mark.behaviour("X14")
async def test_a_close_waits_for_a_silent_stage_as_long_as_it_may(brief: House, dial: Dial) -> None:
    """In time it confirms and its slot is free; too late, and the slot is held back until the replica itself shows it free."""
    for late in (False, True):
        line = await dial(brief.realtime)
        async with silent(brief) as wake:
            if not late:
                asyncio.get_running_loop().call_later(WAKE_S, wake)
            began = time.monotonic()
            await line.socket.close()

            async def others_are_free() -> bool:
                return not (await brief.used())["llm"]

            await until(others_are_free)
            if late:
                assert time.monotonic() - began >= CLOSE_S and await brief.used() == {**dict.fromkeys(STAGES, 0), "vocoder": 1}
        await brief.wait_free()


@pytest.mark.behaviour("X14", "X12")
async def test_a_takeover_waits_for_a_silent_stage_as_long_as_it_may(brief: House, dial: Dial) -> None:
    """In time, nothing was lost; too late, and it is a lost stage, which has no other replica here."""
    line = await dial(brief.realtimes[0], extended=True)
    async with silent(brief) as wake:
        asyncio.get_running_loop().call_later(WAKE_S, wake)
        line = await line.resume(brief.realtimes[1])
    check_whole(line, await line.reply("hello", instructions="words=1"), 1)
    began = time.monotonic()
    async with silent(brief):
        line = await line.resume(brief.realtimes[0])
        assert time.monotonic() - began >= ATTACH_S
        assert (await line.until("error"))["error"]["code"] == "stage_lost"
        assert await line.until_closed() == (1011, "stage_lost")
    await brief.wait_free()


@pytest.mark.behaviour("X14")
async def test_a_client_that_answers_no_ping_is_gone(brief: House, dial: Dial) -> None:
    """One that answers stays far beyond both times; one that reads nothing is lost after them, and may come back."""
    answers, quiet = await dial(brief.realtime), await dial(brief.realtime)
    quiet.socket.transport.pause_reading()
    began = time.monotonic()
    await until_recorded(brief, quiet, "detached")
    assert time.monotonic() - began >= PONG_S
    quiet.vanish()
    back = await quiet.resume(brief.realtime)
    await asyncio.sleep(2 * (PING_S + PONG_S))
    for line in (answers, back):
        check_whole(line, await line.reply("hello", instructions="words=1"), 1)


@pytest.mark.behaviour("X14")
async def test_a_frame_at_the_most_is_answered_and_one_byte_more_closes(brief: House, dial: Dial) -> None:
    line = await dial(brief.realtime)

    async def send(size: int) -> None:
        text = '{"type": "response.cancel", "event_id": "e1"}'
        await line.socket.send(text + " " * (size - len(text)))

    await send(EVENT_BYTES)
    assert (await line.until("error"))["error"]["code"] == "response_cancel_not_active"
    for size in (EVENT_BYTES + 1, FRAME_BYTES):
        await send(size)
        assert (await line.until("error"))["error"]["code"] == "event_too_large"
    await send(FRAME_BYTES + 1)
    assert (await line.until_closed())[0] == 1009


# without a house


class Engine(stage_pb2_grpc.StageServicer):
    """Beats with the age that it is told."""

    def __init__(self) -> None:
        self.age_ms, self.over, self.beats = 0, threading.Event(), 0

    def Pulse(self, request: pb.PulseRequest, context: Any) -> Iterator[pb.PulseResponse]:
        while not self.over.wait(0.02):
            yield pb.PulseResponse(replica_id="r", stages=[pb.StagePulse(stage="asr", engine_age_ms=self.age_ms)])
            self.beats += 1


@pytest.mark.behaviour("X14")
async def test_an_engine_may_stand_still_for_so_long_and_not_a_millisecond_more() -> None:
    server, engine, limit_ms = grpc.server(ThreadPoolExecutor(2)), Engine(), 700
    stage_pb2_grpc.add_StageServicer_to_server(engine, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    pool, lost = StagePool(), asyncio.Event()
    watch = PulseWatch(pool.stub, "gw_test", 20.0, limit_ms / 1000)
    watch.care(address, "key", "asr", lambda why: lost.set())
    engine.age_ms = limit_ms

    async def has_beaten() -> bool:
        return engine.beats >= 20

    await until(has_beaten)
    assert not lost.is_set()
    engine.age_ms = limit_ms + 1
    async with asyncio.timeout(20):
        await lost.wait()
    await watch.close()
    await pool.close()
    engine.over.set()
    await asyncio.to_thread(server.stop(None).wait)


async def _register(store: Store, replica: str, *held: str) -> None:
    offers = tuple(StageOffer(stage, 1, held=held) for stage in GRAPH.stages)
    await store.registry.beat(ReplicaBeat(replica, "all", "127.0.0.1:1", offers))


@pytest.mark.behaviour("X14", "X3")
async def test_a_lost_stage_waits_for_a_place_as_long_as_it_may(store: Store) -> None:
    """The other replica is full: a place that comes free in time is taken, else the stage stays lost."""
    pool = StagePool()
    await _register(store, "r1")
    placed = (await store.admission.reserve("sess_1", "t1", GRAPH.stages)).placements
    await _register(store, "r2")
    await store.admission.reserve("other", "t1", GRAPH.stages, avoid=("r1",))
    opened = Opened("sess_1", "t1", Lease("sess_1", 1, "h1"), 1, {}, dict(placed), "token")

    async def place(wait_ms: int) -> None:
        opener = Opener(store, pool, GRAPH, "p", "gw_1", Settings(replace_wait_ms=wait_ms))
        await opener.place_anew(opened, Replace("vocoder", {}), "r1", SessionConfig("m"), 0)

    began = time.monotonic()
    with pytest.raises(AtCapacity):
        await place(500)
    assert time.monotonic() - began >= 0.5
    waiting = asyncio.create_task(place(20_000))
    await store.admission.release("other")
    with pytest.raises(StageRefused):  # nobody listens at the place that it got
        await waiting
    assert opened.placements["vocoder"].replica_id == "r2"
    await pool.close()
