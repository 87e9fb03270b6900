"""An open is all or nothing: what fails in its midst gives back what was taken, and what cannot be given back is not given to others."""

from __future__ import annotations

import asyncio
import signal

import pytest
from websockets.exceptions import InvalidStatus

from tests.e2e.conftest import MakeHouse
from tests.failover.conftest import PATIENT, Dial
from tests.failover.line import until
from tests.support.checks import check_whole
from tests.support.house import STAGES, House


@pytest.fixture(scope="module")
def house(make_house: MakeHouse) -> House:
    """What a reservation is worth that nobody could give back, it loses soon."""
    settings = {**PATIENT, "PARLEY_REDIS_TIMEOUT_MS": "450", "PARLEY_RESERVATION_TTL_MS": "3000"}
    return make_house(services=("vad", "thinker", "talker", "vocoder"), gateway=settings)


@pytest.mark.behaviour("A3", "K32")
async def test_stages_that_opened_are_freed_when_the_record_cannot_be_written(house: House, dial: Dial) -> None:
    """The store goes away while the last stage is still opening: refused, and every stage is left before the store is back."""
    vocoder = house.services["vocoder"]
    vocoder.signal(signal.SIGSTOP)
    opening = asyncio.create_task(dial(house.realtime))

    async def others_opened() -> bool:
        return {stage for stage, _ in await house.held("vad", "thinker", "talker")} == set(STAGES) - {"vocoder"}

    await until(others_opened)
    house.valkey.pause()
    try:
        vocoder.signal(signal.SIGCONT)
        with pytest.raises(InvalidStatus) as refused:
            await opening
        assert refused.value.response.status_code == 503

        async def nothing_held() -> bool:
            return not await house.held()

        await until(nothing_held)
    finally:
        house.valkey.resume()
    await house.wait_free(20)
    line = await dial(house.realtime)
    check_whole(line, await line.reply("hello", instructions="words=1"), 1)


@pytest.mark.behaviour("A3", "X3")
async def test_a_replica_that_died_a_moment_ago_costs_nobody_a_session(make_house: MakeHouse, dial: Dial) -> None:
    """The registry names it until its time to live is over: whoever is sent there is sent on."""
    house = make_house(services=("vad", "thinker", "talker", "vocoder"), replicas=2, gateway={"PARLEY_REPLICA_TTL_MS": "60000"})
    dead = next(name for name in house.services if name.startswith("thinker"))
    house.services[dead].kill()
    lines = [await dial(house.realtime) for _ in range(6)]
    check_whole(lines[-1], await lines[-1].reply("hello", instructions="words=1"), 1)
