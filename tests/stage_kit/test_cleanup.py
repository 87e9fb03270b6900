"""However a session ends, and in the middle of whatever: its engine is told once, and not before the work that it does is done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from parley_stage.v1 import stage_pb2

from stage_kit import Service
from tests.stage_kit.support import Conversation, Probe, StageClient, serving, until_set

End = Callable[[Service, StageClient, Conversation], Awaitable[object]]


async def close(service: Service, client: StageClient, talk: Conversation) -> None:
    await talk.close()


async def release(service: Service, client: StageClient, talk: Conversation) -> None:
    await client.stub.Release(stage_pb2.ReleaseRequest(authority=talk.authority, stage="probe"))


async def orphan(service: Service, client: StageClient, talk: Conversation) -> None:
    service.hosts["probe"].free("s1", "orphan")


async def hang_up(service: Service, client: StageClient, talk: Conversation) -> None:
    await talk.hang_up()


ENDS: tuple[End, ...] = (close, release, orphan, hang_up)


@pytest.mark.behaviour("K35")
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "in-a-step"])
@pytest.mark.parametrize("first", range(len(ENDS)))
async def test_an_engine_cleans_up_once_whoever_asks_and_however_often(first: int, busy: bool) -> None:
    engine = Probe()
    async with serving(engine, detached_ttl_s=0.2) as (client, service):
        talk = client.converse()
        await talk.open()
        if busy:
            engine.gate.clear()
            await talk.text("long")
            await until_set(engine.busy)
        ending = [asyncio.create_task(_quietly(end(service, client, talk))) for end in ENDS[first:] + ENDS[:first]]
        await asyncio.wait(ending, timeout=0.2)
        if busy:
            assert ("close", "s1") not in engine.log and len(await client.held()) == 1, "the step is not over"
            engine.gate.set()
        await client.until_held(0)
        await asyncio.gather(*ending)
        await client.converse("s2").open()
        assert [entry for entry in engine.log if entry == ("close", "s1")] == [("close", "s1")]


async def _quietly(work: Awaitable[object]) -> None:
    """An end that comes after another may find that there is nothing to end."""
    await asyncio.gather(work, return_exceptions=True)
