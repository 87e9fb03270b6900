"""What a client sends while a stage still looks at its session.update: held, then not even read, never refused and never lost."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.e2e.conftest import MakeHouse
from tests.failover.conftest import PATIENT, Dial
from tests.support.checks import check_whole
from tests.support.speech import silence

MIB = 1024 * 1024


@pytest.mark.behaviour("B1", "M1")
async def test_more_than_may_wait_behind_an_update_is_left_in_the_socket(make_house: MakeHouse, dial: Dial) -> None:
    house = make_house(services=("all",), gateway={**PATIENT, "PARLEY_UPDATE_TIMEOUT_MS": "60000", "PARLEY_PULSE_TIMEOUT_MS": "60000"})
    line, stage = await dial(house.realtime, extended=True), house.services["all"]
    stage.signal(signal.SIGSTOP)
    try:
        await line.send("session.update", session={"type": "realtime", "audio": {"input": {"turn_detection": None}}})

        async def say() -> None:
            for n in range(600):
                text = {"type": "input_text", "text": f"item {n}"}
                await line.send("conversation.item.create", item={"type": "message", "role": "user", "content": [text]})
            for _ in range(7):
                await line.append(silence(40_000), 2 * MIB)

        saying = asyncio.create_task(say())
        await asyncio.wait([saying], timeout=3)
        assert not saying.done(), "more than the buffers between hold"
        assert not line.of("error", "conversation.item.done") and house.gateway.rss_bytes() < 300 * MIB
    finally:
        stage.signal(signal.SIGCONT)
    async with asyncio.timeout(30):
        await saying
    await line.send("input_audio_buffer.clear")
    await line.until("input_audio_buffer.cleared")
    said = [event["item"]["content"][0]["text"] for event in line.of("conversation.item.done")]
    assert said == [f"item {n}" for n in range(600)]
    check_whole(line, await line.reply("hello", instructions="words=2"), 2)
    assert not line.of("error")
    line.check_numbers()
