"""What a client shows, says and takes back while the only replica of the model is away."""

from __future__ import annotations

import asyncio
import base64

import pytest

from tests.e2e.conftest import MakeHouse
from tests.failover.conftest import Dial
from tests.failover.line import Line
from tests.failover.test_waiting import SOLE, gone
from tests.native_e2e.conftest import PROFILE, STAGES
from tests.native_e2e.partner import JPEG, Partner
from tests.support.house import House


@pytest.fixture(scope="module")
def sole(make_house: MakeHouse) -> House:
    return make_house(services=STAGES, gateways=1, gateway={**SOLE, **PROFILE}, stages=STAGES)


async def show(line: Line) -> None:
    await line.send("input_audio_buffer.append", audio="", video_frames=[base64.b64encode(JPEG).decode()])


@pytest.mark.behaviour("X3", "W22")
async def test_a_model_that_is_back_sees_on_whatever_was_shown_meanwhile(sole: House, dial: Dial) -> None:
    line = await dial(sole.realtime, extended=True)
    await line.configure(model_options={"turn_units": 2, "words": 1})
    partner = Partner(line)
    await partner.say(420, loud=False)
    async with gone(sole, "seer", line):
        for _ in range(2):
            await show(line)
            await partner.say(200, loud=False)
    async with partner.listening():
        await asyncio.sleep(1.0)
        await show(line)
        await partner.ask()
        done = (await line.until("response.done"))["response"]
    assert line.transcript(done["id"]).startswith("1 seen. ") and not line.of("error")


@pytest.mark.behaviour("X3")
@pytest.mark.parametrize("away", [False, True])
async def test_what_was_cleared_is_not_answered_by_a_model_that_is_back(sole: House, dial: Dial, away: bool) -> None:
    line = await dial(sole.realtime, extended=True)
    await line.configure(model_options={"turn_units": 2})
    partner = Partner(line)
    await partner.say(620, loud=False)
    if not away:
        await partner.say(150)
        await line.send("input_audio_buffer.clear")
    async with gone(sole, "seer", line):
        if away:
            await partner.say(600)
            await partner.say(100, loud=False)
            await line.send("input_audio_buffer.clear")
        await line.until("input_audio_buffer.cleared")
    async with partner.listening():
        await asyncio.sleep(1.5)
    assert not line.of("response.created") and not line.of("error")
