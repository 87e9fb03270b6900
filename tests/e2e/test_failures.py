"""What breaks behind the gateway: each has one typed outcome, and what can go on goes on, exact by sample."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator

import pytest
from websockets.exceptions import InvalidStatus

from tests.e2e.conftest import MakeHouse, Talk, admitted
from tests.support.checks import check_begun, check_whole
from tests.support.house import MUTE_MS, STAGES, House
from tests.support.listener import Listener
from tests.support.proxy import Proxy, free_port

WORDS = 9


@pytest.fixture(scope="module")
def path_to_vocoder() -> Iterator[Proxy]:
    with Proxy(f"127.0.0.1:{free_port()}") as proxy:
        yield proxy


@pytest.fixture(scope="module")
def fragile(make_house: MakeHouse, path_to_vocoder: Proxy) -> House:
    """Its gateway reaches the vocoder through the proxy."""
    vocoder = {"PARLEY_BIND": path_to_vocoder.target, "PARLEY_ADVERTISE": path_to_vocoder.address}
    short = {
        "PARLEY_OPEN_TIMEOUT_MS": "1000",
        "PARLEY_CLOSE_TIMEOUT_MS": "500",
        "PARLEY_GRACE_MS": "1000",
        "PARLEY_REPLACE_WAIT_MS": "100",
        "PARLEY_STAGE_WAIT_MS": "0",
        "PARLEY_REAP_INTERVAL_S": "0.3",
        "PARLEY_PULSE_TIMEOUT_MS": "60000",  # what falls silent is found by the core's own watch; tests/failover has the pulse's
    }
    return make_house(service_env={"vocoder": vocoder}, gateway=short)


async def _speaking(listener: Listener, words: int = WORDS) -> str:
    """A reply whose first sound has come: its id."""
    response = await listener.ask("hello", instructions=f"words={words}")
    await listener.until("response.output_audio.delta")
    response_id: str = response["id"]
    return response_id


@pytest.mark.behaviour("X12")
async def test_a_broken_stream_is_taken_up_again_without_a_sample_lost(fragile: House, path_to_vocoder: Proxy, talk: Talk) -> None:
    listener = await talk(fragile)
    response_id = await _speaking(listener)
    for _ in range(3):
        before = await asyncio.to_thread(_reattaches, fragile)
        path_to_vocoder.cut()
        async with asyncio.timeout(10):
            while await asyncio.to_thread(_reattaches, fragile) == before:
                await listener.until("response.output_audio.delta")
    check_whole(listener, await listener.response_done(response_id), WORDS)
    check_whole(listener, await listener.reply("again", instructions="words=2"), 2)
    assert not listener.of("error")


def _reattaches(house: House) -> float:
    return house.metric("parley_gateway_reattaches_total", stage="vocoder")


@pytest.mark.behaviour("S2")
async def test_a_stage_that_fails_at_one_response_ends_that_response_only(fragile: House, talk: Talk) -> None:
    listener, other = await talk(fragile), await talk(fragile)
    with fragile.fault("vocoder-append"):
        done = await listener.reply("hello")
        assert done["status"] == "failed" and done["status_details"]["error"]["code"] == "stage_failed"
    check_whole(listener, await listener.reply("again", instructions="words=2"), 2)
    check_whole(other, await other.reply("hello", instructions="words=2"), 2)


async def test_a_stage_that_says_nothing_is_noticed_within_its_bound(fragile: House, talk: Talk) -> None:
    listener = await talk(fragile)
    fragile.services["vocoder"].signal(signal.SIGSTOP)
    try:
        started = time.monotonic()
        done = await listener.reply("hello")
        assert done["status"] == "failed" and done["status_details"]["error"]["code"] == "stage_timeout"
        assert time.monotonic() - started > 1.5
        assert done["usage"] is not None
    finally:
        fragile.services["vocoder"].signal(signal.SIGCONT)
    check_whole(listener, await listener.reply("again", instructions="words=2"), 2)


@pytest.mark.behaviour("L7", "K30")
async def test_a_stage_that_does_not_answer_an_open_is_left_with_nothing(fragile: House, talk: Talk) -> None:
    await fragile.wait_free()
    fragile.services["vocoder"].signal(signal.SIGSTOP)
    try:
        with pytest.raises(InvalidStatus) as refused:
            await talk(fragile)
        assert refused.value.response.status_code == 503
        # nobody can know yet what the silent stage holds: its slot stays taken, the others' are free
        used = await fragile.used()
        assert (used.pop("vocoder"), set(used.values())) == (1, {0})
    finally:
        fragile.services["vocoder"].signal(signal.SIGCONT)
    await fragile.wait_free()
    check = await admitted(talk, fragile)
    check_whole(check, await check.reply("hello", instructions="words=2"), 2)


@pytest.mark.behaviour("X4")
async def test_a_store_that_stops_for_a_while_stops_no_conversation(fragile: House, talk: Talk) -> None:
    listener = await talk(fragile)
    response_id = await _speaking(listener)
    fragile.valkey.pause()
    stopped = time.monotonic()
    try:
        check_whole(listener, await listener.response_done(response_id), WORDS)
        while time.monotonic() - stopped < 3:
            check_whole(listener, await listener.reply("still there?", instructions="words=2"), 2)
    finally:
        fragile.valkey.resume()
    check_whole(listener, await listener.reply("and now?", instructions="words=2"), 2)
    assert not listener.of("error") and fragile.metric("parley_gateway_undurable_commits_total") > 0
    assert await fragile.wait_free_but(listener.events[0]["session"]["id"])


@pytest.mark.behaviour("X4")
async def test_a_store_that_is_wiped_stops_no_conversation_and_admits_again(fragile: House, talk: Talk) -> None:
    listener, idle = await talk(fragile), await talk(fragile)
    response_id = await _speaking(listener)
    await asyncio.to_thread(fragile.valkey.kill)
    await asyncio.to_thread(fragile.valkey.start)
    wiped = time.monotonic()
    check_whole(listener, await listener.response_done(response_id), WORDS)
    await asyncio.to_thread(fragile.wait_registered)
    newcomer = await talk(fragile)
    # longer than the store waits before it has what nobody owns freed
    while time.monotonic() - wiped < MUTE_MS / 1000 + 2:
        check_whole(listener, await listener.reply("again", instructions="words=4"), 4)
    for each in (newcomer, idle):
        check_whole(each, await each.reply("hello", instructions="words=2"), 2)
        assert not each.of("error")
    sessions = [each.events[0]["session"]["id"] for each in (listener, idle, newcomer)]
    assert await fragile.records(*sessions) == ["attached"] * 3
    assert await fragile.used() == dict.fromkeys(STAGES, 3)


@pytest.mark.behaviour("K31", "L5")
async def test_a_killed_stage_without_another_replica_ends_its_sessions_by_type(fragile: House, talk: Talk) -> None:
    listener = await talk(fragile)
    idle = await talk(fragile)
    response_id = await _speaking(listener)
    await asyncio.to_thread(fragile.services["vocoder"].kill)
    done = await listener.response_done(response_id)
    assert done["status"] == "failed" and done["status_details"]["error"]["code"] == "stage_lost"
    check_begun(listener, response_id, WORDS)
    assert (await listener.until("error"))["error"]["code"] == "stage_lost"
    assert await listener.until_closed() == (1011, "stage_lost")
    assert await idle.until_closed() == (1011, "stage_lost") and idle.of("error")[0]["error"]["code"] == "stage_lost"
    await asyncio.to_thread(fragile.restart_service, "vocoder")
    await fragile.wait_free()
    again = await admitted(talk, fragile)
    check_whole(again, await again.reply("hello", instructions="words=2"), 2)


@pytest.mark.behaviour("X12")
async def test_a_stage_out_of_reach_is_a_lost_stage_and_holds_nothing_for_long(fragile: House, path_to_vocoder: Proxy, talk: Talk) -> None:
    listener = await admitted(talk, fragile)
    await _speaking(listener)
    path_to_vocoder.cut(refuse=True)
    try:
        assert await listener.until_closed() == (1011, "stage_lost")
        assert [e["response"]["status"] for e in listener.of("response.done")] == ["failed"]
    finally:
        path_to_vocoder.mend()
    # the vocoder could not confirm: its slot is held back until its own beat shows that the session is gone
    await fragile.wait_free(20)


@pytest.mark.behaviour("X5")
async def test_sigterm_lets_a_reply_end_and_closes_the_idle_at_once(fragile: House, talk: Talk) -> None:
    idle, speaking = await admitted(talk, fragile), await talk(fragile)
    response_id = await _speaking(speaking)
    fragile.gateway.signal(signal.SIGTERM)
    assert await idle.until_closed() == (1012, "server_draining")
    assert speaking.closed is None
    status, _, body = await asyncio.to_thread(fragile.get, "/health")
    assert (status, json.loads(body)) == (503, {"status": "draining"})
    assert await speaking.until_closed() == (1012, "server_draining")
    done = speaking.of("response.done")[-1]["response"]
    assert done["id"] == response_id
    check_whole(speaking, done, WORDS)
    assert await asyncio.to_thread(fragile.gateway.wait) == 0
    # nobody came to take them over: the next gateway has them end
    await asyncio.to_thread(fragile.restart_gateway)
    await fragile.wait_free()
    again = await talk(fragile)
    check_whole(again, await again.reply("hello", instructions="words=2"), 2)
