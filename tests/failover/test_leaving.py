"""Gateways go, told or untold: a drained session is told 1012 and goes on elsewhere, one that nobody comes back to is reaped."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from tests.e2e.conftest import MakeHouse
from tests.failover.conftest import PATIENT, Dial
from tests.failover.line import until_recorded
from tests.support.checks import check_whole
from tests.support.house import STAGES, House

LEASE_MS, GRACE_MS, REAP_S = 1500, 2500, 0.3
WORDS = 6
SETTINGS = {
    "PARLEY_GRACE_MS": str(GRACE_MS),
    "PARLEY_LEASE_TTL_MS": str(LEASE_MS),
    "PARLEY_REAP_INTERVAL_S": str(REAP_S),
    "PARLEY_DRAIN_TIMEOUT_MS": "1000",
    **PATIENT,
}
MARGIN_S = 2.0


@pytest.fixture(scope="module")
def pair(make_house: MakeHouse) -> House:
    return make_house(services=("all",), gateways=2, gateway=SETTINGS)


async def stopped(house: House) -> None:
    assert await asyncio.to_thread(house.gateway.wait) == 0
    await asyncio.to_thread(house.restart_gateway)


@pytest.mark.behaviour("X5")
@pytest.mark.parametrize("extended", [False, True], ids=["stock", "ours"])
async def test_a_drained_conversation_is_told_to_go_and_goes_on_elsewhere(pair: House, dial: Dial, extended: bool) -> None:
    """One is quiet and leaves at once, one speaks for longer than the drain waits: neither loses a word."""
    idle, speaking = [await dial(pair.realtimes[0], extended=extended) for _ in range(2)]
    await idle.reply("remember this", instructions="words=1")
    response_id = await speaking.speaking(3 * WORDS)
    pair.gateway.signal(signal.SIGTERM)
    try:
        assert await idle.until_closed() == (1012, "server_draining")
        moved = await idle.resume(pair.realtimes[1])
        assert await speaking.until_closed() == (1012, "server_draining")
        went_on = await speaking.resume(pair.realtimes[1])
        check_whole(went_on, await went_on.response_done(response_id), 3 * WORDS)
        for line in (moved, went_on):
            check_whole(line, await line.reply("again", instructions="words=2"), 2)
            line.check_numbers()
            assert not line.of("error")
        told = await moved.reply("recite", instructions="words=1", output_modalities=["text"])
        assert "remember this" in told["output"][0]["content"][0]["text"]
    finally:
        await stopped(pair)


@pytest.mark.behaviour("X5")
async def test_a_drained_conversation_without_a_client_waits_elsewhere_for_it(pair: House, dial: Dial) -> None:
    line = await dial(pair.realtimes[0], extended=True)
    response_id = await line.speaking(WORDS)
    line.vanish()
    pair.gateway.signal(signal.SIGTERM)
    assert await asyncio.to_thread(pair.gateway.wait) == 0
    try:
        back = await line.resume(pair.realtimes[0])
        check_whole(back, await back.response_done(response_id), WORDS)
        back.check_numbers()
    finally:
        await asyncio.to_thread(pair.restart_gateway)


@pytest.mark.behaviour("L5", "X7", "L1")
@pytest.mark.parametrize("attached", [True, False], ids=["attached", "detached"])
async def test_a_dead_gateways_sessions_are_ended_by_another(pair: House, dial: Dial, attached: bool) -> None:
    line = await dial(pair.realtimes[0])
    await line.speaking(WORDS)
    if not attached:
        line.vanish()
        await until_recorded(pair, line, "detached")
    await asyncio.to_thread(pair.gateway.kill)
    killed = time.monotonic()
    try:
        await pair.wait_free((LEASE_MS + GRACE_MS) / 1000 + REAP_S + MARGIN_S)
        assert time.monotonic() - killed > (GRACE_MS - 500) / 1000, "the client had its time to come back"
        assert await pair.records(line.session_id) == ["closed"]
    finally:
        await asyncio.to_thread(pair.restart_gateway)


@pytest.mark.behaviour("X6")
async def test_a_gateway_that_slept_through_a_takeover_says_nothing_more(pair: House, dial: Dial) -> None:
    old = await dial(pair.realtimes[0], extended=True)
    response_id = await old.speaking(2 * WORDS)
    pair.gateway.signal(signal.SIGSTOP)
    try:
        line = await old.resume(pair.realtimes[1])
        await line.until("response.output_audio.delta")
        known = set(line.numbers)
    finally:
        pair.gateway.signal(signal.SIGCONT)
    woke = time.monotonic()
    assert await old.until_closed() == (1008, "session_taken_over")
    assert time.monotonic() - woke < 1
    assert old.of("session.replaced") and not old.of("session.durability") and set(old.numbers) <= known
    check_whole(line, await line.response_done(response_id), 2 * WORDS)
    line.check_numbers()


@pytest.mark.behaviour("L6", "L7", "K30")
async def test_three_hundred_conversations_leave_nothing_behind(pair: House, dial: Dial) -> None:
    """Opened and closed, lost, resumed and refused in turn: memory is flat after the first hundred."""
    url, sizes = pair.realtimes[1], []
    for cycle in range(300):
        line = await dial(url, extended=cycle % 2 == 0)
        if cycle % 10 == 0:
            await line.speaking(1)
        if cycle % 3 == 0:
            line.vanish()
            line = await line.resume(url)
        await line.hang_up()
        if cycle % 100 == 99:
            sizes.append(pair.gateways[1].rss_bytes())
    await pair.wait_free(GRACE_MS / 1000 + MARGIN_S)
    assert sizes[-1] - sizes[0] < 4 * 1024 * 1024, sizes
    assert await pair.used() == dict.fromkeys(STAGES, 0)
