"""The store is away, comes back, or forgets: attached sessions go on, are told what a resume would find, and are durable again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections import Counter

import pytest
from redis.asyncio import Redis
from websockets.exceptions import InvalidStatus

from session_store import Store, StoreSettings
from session_store.errors import SessionMissing
from tests.e2e.conftest import MakeHouse
from tests.failover.conftest import PATIENT, Dial
from tests.failover.line import Line, number, until, until_recorded
from tests.session_store.helpers import Snapshot
from tests.support.checks import check_whole
from tests.support.house import STAGES, House

SETTINGS = {
    **PATIENT,
    "PARLEY_GRACE_MS": "6000",
    "PARLEY_REAP_INTERVAL_S": "0.3",
    "PARLEY_LEASE_TTL_MS": "2000",
    "PARLEY_REDIS_TIMEOUT_MS": "450",  # an outage is soon found, and a moment's stall of the test machine is none
}


@pytest.fixture(scope="module")
def pair(make_house: MakeHouse) -> House:
    return make_house(services=("all",), gateways=2, gateway=SETTINGS)


async def wipe(house: House) -> None:
    await asyncio.to_thread(house.valkey.kill)
    await asyncio.to_thread(house.valkey.start)
    await asyncio.to_thread(house.wait_registered)


async def until_known(house: House, line: Line, field: str = "config") -> None:
    """The store has a checkpoint of the session with a field whose name begins so."""
    async with await Store.open(house.valkey.url, StoreSettings(redis_timeout_ms=5000)) as store:

        async def known() -> bool:
            with contextlib.suppress(SessionMissing):
                return any(name.startswith(field) for name in (await store.records.load(line.session_id)).fields)
            return False

        await until(known)


async def until_level(house: House, line: Line) -> None:
    """The client has all that the store knows of, the events behind a response's end too."""
    async with await Store.open(house.valkey.url, StoreSettings(redis_timeout_ms=5000)) as store:

        async def level() -> bool:
            return line.last == (await store.records.load(line.session_id)).record.last_seq

        await until(level)


@pytest.mark.behaviour("X4")
async def test_an_outage_is_announced_and_ends(pair: House, dial: Dial) -> None:
    ours, stock = await dial(pair.realtimes[0], extended=True), await dial(pair.realtimes[0])
    for line in (ours, stock):
        await line.reply("hello", instructions="words=1")
    before = ours.last
    pair.valkey.pause()
    try:
        async with asyncio.timeout(15):
            check_whole(ours, await ours.reply("still there?", instructions="words=3"), 3)
            check_whole(stock, await stock.reply("still there?", instructions="words=3"), 3)
        told = ours.of("session.durability")[-1]
        assert told["durable"] is False and number(told) is None
        since = ours.events[ours.events.index(told) :]
        assert ours.last <= before + 3 and all(number(event) is None for event in since), "nobody could replay it: it has no number"
    finally:
        pair.valkey.resume()
    await ours.until(lambda e: e["type"] == "session.durability" and e["durable"])  # by itself: nothing is said meanwhile
    check_whole(ours, await ours.reply("and now?", instructions="words=2"), 2)
    tail = ours.events[ours.events.index(ours.of("session.durability")[-1]) + 1 :]
    numbers = [number(event) for event in tail]
    assert None not in numbers and numbers == list(range(numbers[0] or 0, ours.last + 1)) and (numbers[0] or 0) > before + 3
    assert not stock.of("session.durability", "error") and not ours.of("error")
    ours.vanish()
    back = await ours.resume(pair.realtimes[1])
    check_whole(back, await back.reply("here, too?", instructions="words=2"), 2)
    assert not back.of("session.resync_required")
    told = await back.reply("recite", instructions="words=1", output_modalities=["text"])
    assert told["output"][0]["content"][0]["text"].count("still there?") == 1, "what was said in the outage is known"


@pytest.mark.behaviour("X4")
async def test_after_an_outage_a_silent_session_is_durable_again_by_itself(pair: House, dial: Dial) -> None:
    line = await dial(pair.realtimes[0])
    pair.valkey.pause()
    try:
        await line.type_in("said while nobody could write it down")
    finally:
        pair.valkey.resume()
    await until_known(pair, line, "item:")
    await asyncio.to_thread(pair.gateway.kill)
    try:
        back = await line.resume(pair.realtimes[0])
        told = await back.reply("recite", instructions="words=1", output_modalities=["text"])
        assert "said while nobody could write it down" in told["output"][0]["content"][0]["text"]
    finally:
        await asyncio.to_thread(pair.restart_gateway)


@pytest.mark.behaviour("X4", "X15")
@pytest.mark.parametrize("attached", [True, False], ids=["attached", "detached"])
@pytest.mark.parametrize("killed", [False, True], ids=["gateway-lives", "gateway-dies"])
async def test_a_store_that_forgot_all_is_told_all_again(pair: House, dial: Dial, attached: bool, killed: bool) -> None:
    """Nothing happens in the session after the wipe, and yet it can be resumed elsewhere; what the journal lost is announced."""
    line = await dial(pair.realtimes[0], extended=True)
    await line.reply("remember this", instructions="words=1")
    await until_level(pair, line)
    if not attached:
        line.vanish()
        await until_recorded(pair, line, "detached")
    await wipe(pair)
    await until_known(pair, line)
    if killed:
        await asyncio.to_thread(pair.gateway.kill)
    try:
        back = await line.resume(pair.realtimes[-1])
        assert not back.of("session.resync_required"), "it had all that was said"
        told = await back.reply("recite", instructions="words=1", output_modalities=["text"])
        assert "remember this" in told["output"][0]["content"][0]["text"]
        back.check_numbers()
        assert await pair.records(line.session_id) == ["attached"]
    finally:
        if killed:
            await asyncio.to_thread(pair.restart_gateway)


@pytest.mark.behaviour("X4", "X15")
async def test_who_comes_back_before_the_store_knows_all_again_is_asked_to_wait(pair: House, dial: Dial) -> None:
    """Until the gateways that have the sessions have told the store of them, nobody is turned away for good, and nobody's session ends."""
    lines = [await dial(pair.realtimes[n % 2], extended=bool(n % 3)) for n in range(12)]
    for line in lines:
        await line.type_in("remember this")
    async with Redis.from_url(pair.valkey.url) as admin:
        await admin.flushall()
    for line in lines:
        line.vanish()
    refusals = await asyncio.gather(*(_until_taken(line, pair.realtimes) for line in lines))
    assert set(itertools.chain(*refusals)) <= {"stages_unavailable"}  # none at all where the gateways were quicker
    for line in lines:
        told = await line.sockets[-1].reply("recite", instructions="words=1", output_modalities=["text"])
        assert "remember this" in told["output"][0]["content"][0]["text"]


async def _until_taken(line: Line, urls: list[str]) -> list[str]:
    """Resumes as soon as somebody lets it; the codes with which it was not let before. Raises AssertionError, with them, after a minute."""
    codes: list[str] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(60):
            for url in itertools.cycle(urls):
                try:
                    await line.resume(url)
                except InvalidStatus as refused:
                    codes.append(json.loads(refused.response.body or b"{}")["error"]["code"])
                except AssertionError:
                    codes.append(line.sockets[-1].of("error")[-1]["error"]["code"])
                else:
                    return codes
    raise AssertionError(f"nobody took it: {Counter(codes)}, at last {codes[-3:]}")


@pytest.mark.behaviour("X4", "X15")
async def test_a_store_that_forgot_a_silent_sessions_last_writes_is_told_them_again(pair: House, dial: Dial) -> None:
    first = await dial(pair.realtimes[0], extended=True)
    await first.type_in("remember this")
    lagging = Snapshot(pair.valkey.url)
    await lagging.take()
    line = await first.resume(pair.realtimes[0])
    await line.type_in("and this")
    await lagging.fail_over()
    async with await Store.open(pair.valkey.url, StoreSettings(redis_timeout_ms=5000)) as store:

        async def known() -> bool:
            return (await store.records.load(line.session_id)).record.last_seq >= line.last

        await until(known)
    line.vanish()
    back = await line.resume(pair.realtimes[1])
    told = await back.reply("recite", instructions="words=1", output_modalities=["text"])
    assert "and this" in told["output"][0]["content"][0]["text"] and not back.of("session.resync_required", "error")
    back.check_numbers()


@pytest.mark.behaviour("X4")
async def test_its_return_kills_nobody_and_admits_nobody_twice(pair: House, dial: Dial) -> None:
    lines = [await dial(url) for url in pair.realtimes * 2]
    await wipe(pair)
    more = await dial(pair.realtimes[1])

    async def all_counted() -> bool:
        return await pair.used() == dict.fromkeys(STAGES, len(lines) + 1)

    await until(all_counted)
    for line in (*lines, more):
        check_whole(line, await line.reply("hello", instructions="words=2"), 2)
        assert not line.of("error")
