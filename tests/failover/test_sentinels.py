"""Whole conversations on a store that fails over: sentinels promote the replica, and everybody finds it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from session_store import Store, StoreSettings
from session_store.errors import SessionMissing, StoreUnavailable
from tests.e2e.conftest import MakeHouse
from tests.failover.conftest import PATIENT, Dial
from tests.failover.line import Line, until
from tests.support.checks import check_whole
from tests.support.house import House
from tests.support.sentinels import Watched

SETTINGS = {
    **PATIENT,
    "PARLEY_GRACE_MS": "6000",
    "PARLEY_LEASE_TTL_MS": "2000",
    "PARLEY_REAP_INTERVAL_S": "0.3",
    "PARLEY_REDIS_TIMEOUT_MS": "450",
}


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with Watched() as servers:
        yield servers


@pytest.fixture(scope="module")
def house(make_house: MakeHouse, watched: Watched) -> House:
    """A gateway for each test to kill, and one more."""
    return make_house(services=("all",), gateways=3, gateway=SETTINGS, store_url=watched.url)


def url(house: House, number: int) -> str:
    return f"ws://{house.gateways[number].ready['http']}/v1/realtime"


async def until_stored(house: House, line: Line) -> None:
    """The store has all that the client was told."""
    async with await Store.open(house.store_url, StoreSettings(redis_timeout_ms=5000)) as store:

        async def stored() -> bool:
            try:
                return (await store.records.load(line.session_id)).record.last_seq >= line.last
            except (SessionMissing, StoreUnavailable):
                return False

        await until(stored)


async def durable(line: Line) -> bool:
    """It was told that it was not, and that it is again."""
    return [event["durable"] for event in line.of("session.durability")][-2:] == [False, True]


async def recited(line: Line) -> str:
    told = await line.reply("recite", instructions="words=1", output_modalities=["text"])
    return str(told["output"][0]["content"][0]["text"])


@pytest.mark.behaviour("X4", "X15")
async def test_a_primary_dies_in_mid_conversation(house: House, watched: Watched, dial: Dial) -> None:
    """The reply is whole. Then the gateway dies, too: another goes on with all that was said before, meanwhile, and after."""
    await asyncio.to_thread(watched.heal)
    ours, stock = await dial(url(house, 0), extended=True), await dial(url(house, 0))
    for line in (ours, stock):
        await line.reply("before", instructions="words=1")
    before = ours.last
    asked = [await line.ask("meanwhile", instructions="words=20") for line in (ours, stock)]
    await asyncio.to_thread(watched.primary().kill)
    for line, made in zip((ours, stock), asked, strict=True):
        check_whole(line, await line.response_done(made["id"]), 20)
    await until(lambda: durable(ours))
    check_whole(ours, await ours.reply("after", instructions="words=2"), 2)
    assert ours.last > before and not ours.of("error") and not stock.of("error", "session.durability")
    await stock.reply("after", instructions="words=1")
    for line in (ours, stock):
        await until_stored(house, line)
    await asyncio.to_thread(house.gateways[0].kill)
    for line in (ours, stock):
        back = await line.resume(house.realtimes[-1])
        said = await recited(back)
        assert [said.count(words) for words in ("before", "meanwhile", "after")] == [1, 1, 1]
        assert not back.of("error", "session.resync_required")


@pytest.mark.behaviour("X15")
async def test_the_last_words_that_the_replica_had_not_heard_are_told_to_it_again(house: House, watched: Watched, dial: Dial) -> None:
    """Nothing is said after the failover, no call failed, and the lease is no younger than the record: yet the store is whole again."""
    await asyncio.to_thread(watched.heal)
    line = await dial(url(house, 1), extended=True)
    await line.type_in("remember this")
    primary = watched.primary()
    replica = next(node for node in watched.nodes if node is not primary)
    await until_stored(house, line)
    assert primary.ask("WAIT", 1, 5_000) == 1
    await asyncio.to_thread(replica.deafen)
    await line.type_in("and this")
    await until_stored(house, line)
    await asyncio.to_thread(primary.kill)
    assert await asyncio.to_thread(watched.primary) is replica
    await until_stored(house, line)
    await asyncio.to_thread(house.gateways[1].kill)
    back = await line.resume(house.realtimes[-1])
    said = await recited(back)
    assert "remember this" in said and "and this" in said
    assert not back.of("error", "session.resync_required")
    back.check_numbers()
