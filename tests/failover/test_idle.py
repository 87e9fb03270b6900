"""A session that nobody uses ends by itself and is told why; one whose client only listens, or is silent aloud, lives."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.conftest import MakeHouse
from tests.failover.conftest import PATIENT, Dial
from tests.failover.line import until_recorded
from tests.support.checks import check_whole
from tests.support.house import House
from tests.support.speech import silence

IDLE_MS = 2000
SETTINGS = {**PATIENT, "PARLEY_IDLE_MS": str(IDLE_MS), "PARLEY_REAP_INTERVAL_S": "0.3", "PARLEY_GRACE_MS": "6000"}


@pytest.fixture(scope="module")
def house(make_house: MakeHouse) -> House:
    return make_house(services=("all",), gateway=SETTINGS)


@pytest.mark.behaviour("L1", "L4")
@pytest.mark.parametrize("extended", [False, True], ids=["stock", "ours"])
async def test_an_unused_session_is_told_that_its_time_is_over(house: House, dial: Dial, extended: bool) -> None:
    line = await dial(house.realtime, extended=extended)
    await line.reply("words=1")
    error = await line.until("error")
    assert error["error"]["code"] == "idle_timeout"
    assert await line.until_closed() == (1000, "idle_timeout")
    assert line.of("error") == [error] and not line.of("session.replaced")
    line.check_numbers()
    await until_recorded(house, line, "closed")
    await house.wait_free()


@pytest.mark.behaviour("L1", "L2")
async def test_a_client_that_streams_silence_uses_its_session(house: House, dial: Dial) -> None:
    """No event comes of it, so nothing is committed, and yet the session is in use."""
    line = await dial(house.realtime)
    for _ in range(3 * IDLE_MS // 100):
        await line.append(silence(100))
        await asyncio.sleep(0.1)
    assert [each.type for each in line.heard] == ["session.created"]
    check_whole(line, await line.reply("hello", instructions="words=2"), 2)


@pytest.mark.behaviour("L2")
async def test_a_reply_that_is_longer_than_the_idle_time_is_heard_to_its_end(house: House, dial: Dial) -> None:
    line = await dial(house.realtime)
    check_whole(line, await line.reply("hello", instructions="words=12"), 12)
    assert not line.of("error")
