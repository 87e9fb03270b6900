"""What operators see of one gateway while people come, wait, vanish and come back, and while its store is away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from websockets.asyncio.client import connect

from tests.e2e.conftest import MakeHouse
from tests.failover.line import Line
from tests.failover.line import until as line_until
from tests.support.house import House

SLOTS = 1


@pytest.fixture(scope="module")
def narrow(make_house: MakeHouse) -> House:
    """One conversation at a time; who comes second waits."""
    return make_house(
        services=("all",),
        slots=SLOTS,
        gateway={"PARLEY_QUEUE_WAIT_MS": "10000", "PARLEY_REDIS_TIMEOUT_MS": "300", "PARLEY_STAGE_WAIT_MS": "60000"},
    )


async def until(test: Callable[[], bool]) -> None:
    """The gateway answers on the loop of another process: it is asked beside this one's."""

    async def so() -> bool:
        return await asyncio.to_thread(test)

    await line_until(so)


async def test_states_of_sessions_and_the_queue(narrow: House) -> None:
    def sessions(state: str) -> float:
        return narrow.metric("parley_gateway_sessions", state=state)

    line = await Line.dial(narrow.realtime, extended=True)
    assert (sessions("live"), sessions("detached"), sessions("draining")) == (1, 0, 0)
    line.vanish()
    await until(lambda: (sessions("live"), sessions("detached")) == (0, 1))
    line = await line.resume(narrow.realtime)
    assert sessions("live") == 1
    assert narrow.metric("parley_gateway_takeovers_total", outcome="taken") == 1
    assert narrow.metric("parley_gateway_resume_gaps_total") == 0

    async def second() -> None:
        async with connect(narrow.realtime) as socket:
            await socket.recv()

    waiting = asyncio.create_task(second())
    await until(lambda: narrow.metric("parley_gateway_sessions_queued") == 1)
    assert narrow.metric("parley_gateway_sessions_opening") == 1
    await line.hang_up()
    await waiting
    await until(lambda: narrow.metric("parley_gateway_queue_seconds_count", outcome="admitted") == 1)
    assert narrow.metric("parley_gateway_sessions_queued") == narrow.metric("parley_gateway_sessions_opening") == 0
    assert narrow.metric("parley_gateway_queue_seconds_sum", outcome="admitted") > 0
    assert narrow.metric("parley_gateway_loop_lag_seconds_count") > 0 and narrow.metric("parley_gateway_journal_bytes_sum") > 0


async def test_the_time_without_a_stage_is_measured(narrow: House) -> None:
    line = await Line.dial(narrow.realtime)
    narrow.services["all"].kill()
    await asyncio.to_thread(narrow.restart_service, "all")
    await until(lambda: narrow.metric("parley_gateway_replace_seconds_count") >= 1)
    assert narrow.metric("parley_gateway_replace_seconds_sum") > 0
    await line.hang_up()


async def test_a_store_that_is_away_is_seen(narrow: House) -> None:
    await until(lambda: narrow.metric("parley_gateway_store_reachable") == 1)
    narrow.valkey.pause()
    try:
        await until(lambda: narrow.metric("parley_gateway_store_reachable") == 0)
    finally:
        narrow.valkey.resume()
    await until(lambda: narrow.metric("parley_gateway_store_reachable") == 1)
