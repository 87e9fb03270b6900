"""Slots: refused before the upgrade when there are none, and free when their session is gone, however it went."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.e2e.conftest import MakeHouse, Talk
from tests.support.house import House
from tests.support.listener import listen

SLOTS = 3
GRACE_MS = 700
CLIENT = """
import sys
from websockets.sync.client import connect
with connect(sys.argv[1], max_size=None) as socket:
    socket.recv()
    print("welcomed", flush=True)
    for _ in socket:
        pass
"""


@pytest.fixture(scope="module")
def tight(make_house: MakeHouse) -> House:
    """A client that is refused did not wait for a place; one that vanished may come back within a short grace."""
    return make_house(services=("all",), slots=SLOTS, gateway={"PARLEY_QUEUE_WAIT_MS": "0", "PARLEY_GRACE_MS": str(GRACE_MS)})


async def _refusal(house: House) -> InvalidStatus:
    with pytest.raises(InvalidStatus) as caught:
        async with connect(house.realtime):
            pass
    return caught.value


async def _admitted_again(house: House) -> float:
    """When a client that dials again and again was let in, in monotonic seconds."""
    async with asyncio.timeout(30):
        while True:
            try:
                async with listen(house.realtime) as listener:
                    at = time.monotonic()
                    assert (await listener.reply())["status"] == "completed"
                    return at
            except InvalidStatus as refused:
                assert refused.response.status_code == 503


@pytest.mark.behaviour("W18", "L6", "E1")
async def test_one_more_than_there_are_slots_is_refused_with_a_hint(tight: House, talk: Talk) -> None:
    await tight.wait_free()
    listeners = [await talk(tight) for _ in range(SLOTS)]
    answer = (await _refusal(tight)).response
    assert answer.status_code == 503 and int(answer.headers["Retry-After"]) >= 1
    assert b'"at_capacity"' in (answer.body or b"")
    assert (await listeners[0].reply())["status"] == "completed"
    await listeners[1].socket.close()
    await _admitted_again(tight)
    assert await tight.used() != dict.fromkeys(await tight.used(), 0)


@pytest.mark.behaviour("L7", "L8", "R7")
@pytest.mark.parametrize("end", ["killed", "reset", "half-open"])
async def test_a_client_that_goes_without_a_word_frees_its_slots_after_its_grace(tight: House, talk: Talk, end: str) -> None:
    await tight.wait_free()
    for _ in range(SLOTS - 1):
        await talk(tight)
    if end == "killed":
        client = await asyncio.create_subprocess_exec(sys.executable, "-c", CLIENT, tight.realtime, stdout=subprocess.PIPE)
        assert client.stdout is not None and await client.stdout.readline() == b"welcomed\n"
        assert (await _refusal(tight)).response.status_code == 503
        left = time.monotonic()
        client.kill()
        await client.wait()
    else:
        leaving = await talk(tight)
        await leaving.ask("words=100")
        await leaving.until("response.output_audio.delta")
        assert (await _refusal(tight)).response.status_code == 503
        left = time.monotonic()
        if end == "reset":
            leaving.socket.transport.abort()
        else:
            leaving.socket.transport.write_eof()
    assert await _admitted_again(tight) - left > GRACE_MS / 1000 - 0.1


@pytest.mark.behaviour("L6", "X7")
async def test_who_finds_no_place_waits_a_moment_in_a_queue(make_house: MakeHouse, talk: Talk) -> None:
    house = make_house(services=("all",), slots=1, gateway={"PARLEY_QUEUE_WAIT_MS": "1500"})
    first = await talk(house)
    started = time.monotonic()
    assert (await _refusal(house)).response.status_code == 503
    assert time.monotonic() - started > 1.4
    waiting = [asyncio.create_task(talk(house)) for _ in range(2)]
    await first.socket.close()
    done, pending = await asyncio.wait(waiting)
    assert not pending and {type(each.exception()) for each in done} == {type(None), InvalidStatus}


@pytest.mark.behaviour("L7", "W15", "K32")
async def test_a_stage_that_does_not_open_leaves_nothing_anywhere(tight: House) -> None:
    await tight.wait_free()
    with tight.fault("talker-open"):
        answer = (await _refusal(tight)).response
        assert answer.status_code == 503 and b'"stages_unavailable"' in (answer.body or b"")
        await tight.wait_free()
    await _admitted_again(tight)
    await tight.wait_free()


@pytest.mark.behaviour("L6")
async def test_all_at_once_and_never_more_than_there_are_slots(tight: House) -> None:
    await tight.wait_free()

    async def attempt(gate: asyncio.Event) -> bool:
        try:
            async with listen(tight.realtime) as listener:
                held = {session for _, session in await tight.held()}
                assert len(held) <= SLOTS
                await gate.wait()
                return (await listener.reply())["status"] == "completed"
        except InvalidStatus as refused:
            assert refused.response.status_code == 503
            return False

    gate = asyncio.Event()
    attempts = [asyncio.create_task(attempt(gate)) for _ in range(3 * SLOTS)]
    refused = 0
    for each in asyncio.as_completed(attempts):
        refused += not await each
        if refused == 2 * SLOTS:
            gate.set()
    assert refused == 2 * SLOTS
    await tight.wait_free()
