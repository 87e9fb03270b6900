"""Gateways go, told or untold: a drained session is told 1012 and goes on elsewhere, one that nobody comes back to is reaped."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from tests.e2e.conftest import MakeHouse
from tests.failover.conftest import PATIENT, Dial
from tests.failover.line import Line, until_recorded
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
FREE_S = 30.0
"""Longest wait for what ends by a deadline, however loaded the machine is."""
INPUT = {"type": "input_text", "text": "said to one who sleeps"}


@pytest.fixture(scope="module")
def pair(make_house: MakeHouse) -> House:
    return make_house(services=("all",), gateways=2, gateway=SETTINGS)


async def stopped(house: House) -> None:
    assert await asyncio.to_thread(house.gateway.wait) == 0
    await asyncio.to_thread(house.restart_gateway)


def lapsed(house: House) -> float:
    """How often the first gateway found itself past its leases' time."""
    return house.metric("parley_gateway_tenures_lapsed_total")


@pytest.mark.behaviour("X5")
async def test_a_drained_conversation_is_told_to_go_and_goes_on_elsewhere(pair: House, dial: Dial) -> None:
    """Stock and ours; one is quiet and leaves at once, one speaks for longer than the drain waits: none loses a word."""
    idle, speaking = [[await dial(pair.realtimes[0], extended=extended) for extended in (False, True)] for _ in range(2)]
    await asyncio.gather(*(line.reply("remember this", instructions="words=1") for line in idle))
    replies = await asyncio.gather(*(line.speaking(2 * WORDS) for line in speaking))
    pair.gateway.signal(signal.SIGTERM)
    try:
        moving = [_move_in_silence(pair, line) for line in idle]
        await asyncio.gather(*moving, *(_move_in_speech(pair, *each) for each in zip(speaking, replies, strict=True)))
    finally:
        await stopped(pair)


async def _move_in_silence(house: House, line: Line) -> None:
    assert await line.until_closed() == (1012, "server_draining")
    moved = await line.resume(house.realtimes[1])
    await _goes_on(moved)
    told = await moved.reply("recite", instructions="words=1", output_modalities=["text"])
    assert "remember this" in told["output"][0]["content"][0]["text"]


async def _move_in_speech(house: House, line: Line, response_id: str) -> None:
    assert await line.until_closed() == (1012, "server_draining")
    moved = await line.resume(house.realtimes[1])
    check_whole(moved, await moved.response_done(response_id), 2 * WORDS)
    await _goes_on(moved)


async def _goes_on(line: Line) -> None:
    check_whole(line, await line.reply("again", instructions="words=2"), 2)
    line.check_numbers()
    assert not line.of("error")


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
        await pair.wait_free(FREE_S)
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
        committed = line.of("session.resumed")[0]["seq"]
    finally:
        pair.gateway.signal(signal.SIGCONT)
    assert await old.until_closed() == (1008, "session_taken_over")
    assert old.of("session.replaced") and not old.of("session.durability") and old.last <= committed
    check_whole(line, await line.response_done(response_id), 2 * WORDS)
    line.check_numbers()


@pytest.mark.behaviour("X6")
@pytest.mark.parametrize("extended", [False, True], ids=["stock", "ours"])
async def test_a_gateway_that_slept_past_its_lease_says_nothing_after_waking_but_that_it_lost(
    pair: House, dial: Dial, extended: bool
) -> None:
    """Sound was due, the client spoke and a stage answered while it slept: none of it leaves before the store was asked.

    Only a write that had begun when the process froze ends when it wakes; its event is one that the successor told, too.
    """
    old, lapses = await dial(pair.realtimes[0], extended=extended), lapsed(pair)
    response_id = await old.speaking(2 * WORDS)
    pair.gateway.signal(signal.SIGSTOP)
    slept = time.monotonic()
    try:
        await old.send("conversation.item.create", item={"type": "message", "role": "user", "content": [INPUT]})
        line = await old.resume(pair.realtimes[1])
        check_whole(line, await line.response_done(response_id), 2 * WORDS)
        while time.monotonic() - slept < LEASE_MS / 1000:
            await line.reply("words=1")
        before = len(old.heard)
    finally:
        pair.gateway.signal(signal.SIGCONT)
    assert await old.until_closed() == (1008, "session_taken_over")
    told = old.events[before:]
    assert [event["type"] for event in told if event not in line.events] == ["session.replaced"] * extended
    assert len(told) <= 1 + extended
    assert lapsed(pair) > lapses
    check_whole(line, await line.reply("again", instructions="words=2"), 2)
    line.check_numbers()


@pytest.mark.behaviour("X6")
async def test_a_gateway_that_slept_past_its_lease_and_lost_nothing_goes_on(pair: House, dial: Dial) -> None:
    line, lapses = await dial(pair.realtimes[0], extended=True), lapsed(pair)
    response_id = await line.speaking(2 * WORDS)
    pair.gateway.signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(LEASE_MS / 1000 + 0.1)
    finally:
        pair.gateway.signal(signal.SIGCONT)
    check_whole(line, await line.response_done(response_id), 2 * WORDS)
    assert lapsed(pair) > lapses
    check_whole(line, await line.reply("again", instructions="words=2"), 2)
    line.check_numbers()


@pytest.mark.behaviour("X6", "L4")
async def test_a_gateway_that_slept_until_it_was_reaped_tells_its_client_that_the_session_is_over(pair: House, dial: Dial) -> None:
    line = await dial(pair.realtimes[0], extended=True)
    await line.reply("words=1")
    before = len(line.heard)
    pair.gateway.signal(signal.SIGSTOP)
    try:
        await until_recorded(pair, line, "closed")
    finally:
        pair.gateway.signal(signal.SIGCONT)
    assert await line.until_closed() == (1008, "session_expired")
    assert line.heard[before:] == []


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
    await pair.wait_free(FREE_S)
    assert sizes[-1] - sizes[0] < 4 * 1024 * 1024, sizes
    assert await pair.used() == dict.fromkeys(STAGES, 0)
