"""Limits of a replica, on a real one: at the limit the work is done, one step beyond it is refused by name, and the session goes on."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest
from parley_stage.v1 import stage_pb2

from stage_kit import Service
from stage_kit.errors import Code
from stage_kit.stream import Stream
from tests.failover.line import until
from tests.stage_kit.support import WAIT_S, Conversation, Probe, StageClient, serving, until_set
from tests.support.proxy import Proxy


async def _refused(talk: Conversation) -> tuple[int, str, bool]:
    error = (await talk.read("error")).error
    return error.code, error.param, error.session_ended


@pytest.mark.behaviour("X14")
async def test_edges_are_bounded() -> None:
    async with serving(Probe(), edges_count=2) as (client, _):
        talk = client.converse()
        await talk.open()
        for edge in ("a", "b"):
            await talk.text(edge, edge=edge)
        assert await talk.texts(2) == ["a", "b"]
        await talk.text("c", edge="c")
        assert await _refused(talk) == (Code.CODE_LIMIT_EXCEEDED, "edges_count", False)
        await talk.text("again", edge="a")
        assert await talk.texts(1) == ["again"]


@pytest.mark.behaviour("X14")
async def test_updates_that_wait_are_bounded() -> None:
    async with serving(Probe(), staged_updates_count=2) as (client, _):
        talk = client.converse()
        await talk.open()
        for generation in (2, 3, 4):
            await talk.send(update=stage_pb2.Update(config_generation=generation, config_json="{}"))
        assert [(await talk.read("updated")).updated.config_generation for _ in range(2)] == [2, 3]
        refused = (await talk.read("updated")).updated.error
        assert (refused.code, refused.param) == (Code.CODE_LIMIT_EXCEEDED, "staged_updates_count")
        await talk.text("now", config_generation=3)
        assert await talk.texts(1) == ["now"]
        await talk.send(update=stage_pb2.Update(config_generation=4, config_json="{}"))
        assert (await talk.read("updated")).updated.config_generation == 4


@pytest.mark.behaviour("X14")
async def test_a_message_at_its_limit_passes_and_one_byte_more_ends_the_call() -> None:
    """The session outlives the call, as it outlives any."""
    most = 4096
    async with serving(Probe(), message_bytes=most, append_bytes=4 * most) as (client, _):
        talk = client.converse()
        await talk.open()
        await talk.text("x" * 3000)
        await talk.texts(1)
        spare = most - 3000 - _size(talk, 3000)
        await talk.text("x" * (3000 + spare))
        assert len((await talk.texts(1))[0]) == 3000 + spare
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await talk.text("x" * (3000 + spare + 1))
            await talk.read("chunk")
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        back = client.converse(attachment=2)
        assert (await back.attach(consumed=2)).watermarks.edges["core"] == 2


def _size(talk: Conversation, chars: int) -> int:
    """Bytes of a message around a text of so many characters, at the positions that the test gets to."""
    append = stage_pb2.Append(edge="core", position=2, previous=1, lane=stage_pb2.LANE_RESPONSE, payload={"text": {"text": "x" * chars}})
    label = stage_pb2.Label(turn=1, response_id="r")
    return stage_pb2.ToStage(authority=talk.authority, label=label, append=append).ByteSize() - chars


@pytest.mark.behaviour("X14")
async def test_one_sessions_appends_let_the_next_session_in() -> None:
    engine = Probe()
    async with serving(engine, receive_burst_count=3) as (client, _):
        busy, other = client.converse("busy"), client.converse("other")
        await busy.open()
        await other.open()
        engine.gate.clear()
        await busy.text("long")
        await until_set(engine.busy)
        for number in range(7):
            await busy.text(f"b{number}")
        await other.text("o")
        await client.until_waiting([7, 1])
        engine.gate.set()
        await other.texts(1)
        await busy.texts(8)
        order = [text for text, _ in engine.configs]
        assert order[:5] == ["long", "b0", "b1", "b2", "o"]


@pytest.mark.behaviour("X14")
async def test_a_drain_waits_for_its_sessions_as_long_as_it_may() -> None:
    async with serving(Probe(), drain_s=0.4) as (client, service):
        await client.converse().open()
        began = time.monotonic()
        await service.drain()
        assert time.monotonic() - began >= 0.4
    async with serving(Probe(), drain_s=60) as (client, service):
        talk = client.converse()
        await talk.open()
        draining = asyncio.create_task(service.drain())
        await talk.close()
        await talk.read("closed")
        async with asyncio.timeout(WAIT_S):
            await draining


@pytest.mark.behaviour("X14")
async def test_an_engine_that_does_not_turn_is_not_live() -> None:
    """The engine may work for so long at one step, and an idle one is always live."""
    engine = Probe()
    async with serving(engine, stuck_s=0.6, detached_ttl_s=0.2) as (client, service):
        talk = client.converse()
        await talk.open()
        await asyncio.sleep(1.0)
        assert service.health.serving("live"), "idle"
        engine.gate.clear()
        began = time.monotonic()
        await talk.text("long")
        await _until_live(service, False)
        assert time.monotonic() - began >= 0.6
        engine.gate.set()
        await _until_live(service, True)


async def _until_live(service: Service, wanted: bool) -> None:
    async def so() -> bool:
        return service.health.serving("live") is wanted

    await until(so, WAIT_S)


@pytest.mark.behaviour("X14")
async def test_a_peer_that_answers_no_ping_is_gone() -> None:
    """A silent connection that answers is kept; over one that answers nothing any more, the session is soon without a stream."""
    async with serving(Probe(), keepalive_ms=1000, keepalive_timeout_ms=500, detached_ttl_s=60) as (client, service):
        with Proxy(service.address) as proxy:
            far = StageClient(proxy.address)
            await far.converse().open()
            await asyncio.sleep(3)
            assert [held.attached for held in await client.held()] == [True]
            held = time.monotonic()
            proxy.hold()

            async def detached() -> bool:
                return not (await client.held())[0].attached

            await until(detached, WAIT_S)
            assert time.monotonic() - held >= 0.5
            proxy.release()
            await far.channel.close()


@pytest.mark.behaviour("X14")
async def test_one_call_carries_so_many_streams_and_not_one_more() -> None:
    async with serving(Probe(slots=8), carried_streams_count=2) as (client, _):
        call = client.stub.Carry()

        async def begin(number: int) -> str:
            authority = stage_pb2.Authority(session_id=f"s{number}", placement=1, attachment=1, holder_id="g1")
            message = stage_pb2.ToStage(authority=authority, open=stage_pb2.Open(stage="probe", contract_version=1, config_json="{}"))
            await call.write(stage_pb2.ToStageBatch(parcels=[stage_pb2.ToStageParcel(stream=number, message=message)]))
            (parcel, *_) = (await call.read()).parcels
            assert parcel.stream == number
            error = parcel.message.error
            return error.param if error.code == Code.CODE_LIMIT_EXCEEDED else str(parcel.message.WhichOneof("event"))

        async with asyncio.timeout(WAIT_S):
            assert [await begin(number) for number in (1, 2, 3)] == ["opened", "opened", "carried_streams_count"]
        call.cancel()


@pytest.mark.behaviour("X14")
async def test_a_stream_that_is_not_read_is_ended_at_its_bound() -> None:
    stream = Stream(2, lambda: None)
    for _ in range(2):
        stream.reply(stage_pb2.FromStage())
    assert stream.open
    stream.reply(stage_pb2.FromStage())
    assert not stream.open
