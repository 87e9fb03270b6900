"""Events without a number, and a store that knows less than the client: each counted, what is forgotten told once."""

from __future__ import annotations

import asyncio

import pytest

from session_store import Store, StoreSettings
from tests.e2e.conftest import MakeHouse
from tests.failover.conftest import PATIENT, Dial
from tests.failover.line import Line, number, until
from tests.support.checks import check_whole
from tests.support.house import House

SETTINGS = {**PATIENT, "PARLEY_GRACE_MS": "20000", "PARLEY_LEASE_TTL_MS": "2000", "PARLEY_REDIS_TIMEOUT_MS": "450"}


@pytest.fixture(scope="module")
def pair(make_house: MakeHouse) -> House:
    return make_house(services=("all",), gateways=2, gateway=SETTINGS)


async def said_in_an_outage(house: House, line: Line) -> None:
    """The store is away from now on, and something was told that has no number."""
    house.valkey.pause()
    check_whole(line, await line.reply("still there?", instructions="words=1"), 1)
    assert line.unnumbered > 0 and not line.of("session.resync_required")


@pytest.mark.behaviour("X4", "R2")
async def test_what_came_without_a_number_is_no_gap_in_the_journal_that_begins_after_it(pair: House, dial: Dial) -> None:
    line = await dial(pair.realtimes[0], extended=True)
    await line.reply("hello", instructions="words=1")
    try:
        await said_in_an_outage(pair, line)
        line.vanish()
    finally:
        pair.valkey.resume()
    async with await Store.open(pair.valkey.url, StoreSettings(redis_timeout_ms=5000)) as store:

        async def begun_anew() -> bool:
            return (await store.records.load(line.session_id)).record.first_kept_seq > line.last + line.unnumbered

        await until(begun_anew)
    back = await line.resume(pair.realtimes[1])
    check_whole(back, await back.reply("and now?", instructions="words=2"), 2)
    assert not back.of("session.resync_required", "error")
    assert back.numbers[-1] == len([event for event in back.events if event["type"] not in ("session.resumed", "session.durability")])


@pytest.mark.behaviour("X4", "X15", "R8")
async def test_what_the_store_never_had_is_told_as_lost_once_however_often_it_is_resumed(pair: House, dial: Dial) -> None:
    line = await dial(pair.realtimes[0], extended=True)
    await line.reply("hello", instructions="words=1")
    try:
        await said_in_an_outage(pair, line)
        known = line.last + line.unnumbered
        await asyncio.to_thread(pair.gateway.kill)
        await line.until_closed()
    finally:
        pair.valkey.resume()
        await asyncio.to_thread(pair.restart_gateway)
    told = []
    for url in pair.realtimes:  # the second as if the answer to the first had been lost
        back = await line.resume(url)
        told.append(await back.until("session.resync_required"))
        back.vanish()
    assert told[0] == told[1] and number(told[0]) == told[0]["first_seq"] == known + 1 and told[0]["reason"] == "rolled_back"
    again = await back.resume(pair.realtimes[0])
    check_whole(again, await again.reply("and now?", instructions="words=2"), 2)
    assert len(again.of("session.resync_required")) == 1
    tail = again.numbers[again.numbers.index(known + 1) :]
    assert tail == list(range(known + 1, again.last + 1)), "the count goes on above all that the client had"
