"""A stage without another replica is lost: the conversation waits for the one that is to come, and ends by type when none does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from session_store import ReplicaBeat, StageOffer, Store, StoreSettings
from tests.e2e.conftest import MakeHouse
from tests.failover.conftest import PATIENT, Dial
from tests.failover.line import Line, until
from tests.support.checks import check_begun, check_whole
from tests.support.house import STAGES, House
from tests.support.speech import silence, tone

WORDS = 16
TRANSCRIPT_S = 1.0
WAIT_S = 1.5
SOLE = {
    **PATIENT,
    "PARLEY_GRACE_MS": "20000",
    "PARLEY_REAP_INTERVAL_S": "0.3",
    "PARLEY_CLOSE_TIMEOUT_MS": "500",
    "PARLEY_REPLACE_WAIT_MS": "200",
    "PARLEY_TRANSCRIPT_TIMEOUT_MS": str(int(TRANSCRIPT_S * 1000)),
    "PARLEY_STAGE_WAIT_MS": "60000",
}
BRIEF = {"PARLEY_STAGE_WAIT_MS": str(int(WAIT_S * 1000))}


@pytest.fixture(scope="module")
def sole(make_house: MakeHouse) -> House:
    """Each stage once, in a process of its own, and two gateways."""
    return make_house(services=STAGES, gateways=2, gateway=SOLE)


@asynccontextmanager
async def gone(house: House, stage: str, *lines: Line) -> AsyncIterator[None]:
    """The only replica of the stage is killed, and these lines wait for another inside; behind it, there is one."""
    before = waits(house, stage)
    await asyncio.to_thread(house.services[stage].kill)

    async def waited_for() -> bool:
        return await asyncio.to_thread(waits, house, stage) >= before + len(lines)

    try:
        await until(waited_for)
        yield
    finally:
        await asyncio.to_thread(house.restart_service, stage)


def waits(house: House, stage: str) -> float:
    """How many sessions of the first gateway began to wait for the stage so far."""
    return house.metric("parley_gateway_replacements_total", stage=stage, outcome="waited")


async def failed(line: Line, response_id: str) -> None:
    """The reply ended because its stage was lost, and the session did not."""
    done = await line.response_done(response_id)
    assert done["status"] == "failed" and done["status_details"]["error"]["code"] == "stage_lost"
    check_begun(line, response_id, WORDS)


@pytest.mark.behaviour("X3", "K31")
@pytest.mark.parametrize("stage", ["llm", "talker", "vocoder"])
async def test_the_only_replica_dies_in_mid_answer_and_the_next_answer_works_in_the_same_session(
    sole: House, dial: Dial, stage: str
) -> None:
    line, idle = await dial(sole.realtime, extended=True), await dial(sole.realtime)
    await line.reply("remember this", instructions="words=1")
    slow = "words_per_s=4 " if stage == "llm" else ""
    made = await line.ask("hello", instructions=f"{slow}words={WORDS}")
    await line.until("response.output_audio.delta")
    async with gone(sole, stage, line, idle):
        await failed(line, made["id"])
        asked = await line.ask("again", instructions="words=3")
    check_whole(line, await line.response_done(asked["id"]), 3)
    told = await line.reply("recite", instructions="words=1", output_modalities=["text"])
    assert "remember this" in told["output"][0]["content"][0]["text"]
    check_whole(idle, await idle.reply("hello", instructions="words=2"), 2)
    assert not line.of("error") and not idle.of("error")
    line.check_numbers()


@pytest.mark.behaviour("X3", "X16")
@pytest.mark.parametrize("stage", ["turn", "asr"])
async def test_what_is_said_while_the_only_listener_is_away_is_heard_when_it_is_back(sole: House, dial: Dial, stage: str) -> None:
    """However late: words are not awaited in vain while nobody is there to hear them."""
    line = await dial(sole.realtime)
    transcription = {"transcription": {"model": "whisper-1"}, "turn_detection": {"type": "server_vad"}}
    await line.configure(audio={"input": transcription}, instructions="words=2")
    await line.append(silence(300) + tone(200))
    started = await line.until("input_audio_buffer.speech_started")
    async with gone(sole, stage, line):
        await line.append(tone(600) + silence(800))
        if stage == "asr":
            await line.until("input_audio_buffer.committed")
            await asyncio.sleep(2 * TRANSCRIPT_S)
    heard = await line.until("conversation.item.input_audio_transcription.completed")
    stopped = line.of("input_audio_buffer.speech_stopped")[0]
    assert heard["transcript"] == f"heard {stopped['audio_end_ms'] - started['audio_start_ms']} ms"
    assert stopped["audio_end_ms"] - started["audio_start_ms"] == pytest.approx(800, abs=60)
    check_whole(line, (await line.until("response.done"))["response"], 2)
    assert not line.of("error") and len(line.of("input_audio_buffer.speech_started")) == 1
    line.check_numbers()


@pytest.mark.behaviour("X3")
async def test_while_the_others_have_no_room_it_waits_too(sole: House, dial: Dial) -> None:
    line = await dial(sole.realtime)
    response_id = await line.speaking(WORDS)
    full = ReplicaBeat("talker-full", "talker", "127.0.0.1:1", (StageOffer("talker", 0),))
    async with await Store.open(sole.valkey.url, StoreSettings(redis_timeout_ms=5000)) as store:
        await store.registry.beat(full)
        async with gone(sole, "talker", line):
            await failed(line, response_id)
        await store.registry.remove(full.replica_id)
    check_whole(line, await line.reply("again", instructions="words=3"), 3)
    assert not line.of("error")


@pytest.mark.behaviour("X1", "X3")
async def test_a_gateway_dies_while_it_waits_and_another_waits_on(sole: House, dial: Dial) -> None:
    line = await dial(sole.realtimes[0], extended=True)
    response_id = await line.speaking(WORDS)
    async with gone(sole, "talker", line):
        await failed(line, response_id)
        await asyncio.to_thread(sole.gateways[0].kill)
        try:
            line = await line.resume(sole.realtimes[0])
            asked = await line.ask("again", instructions="words=3")
        finally:
            await asyncio.to_thread(sole.restart_gateway)
    check_whole(line, await line.response_done(asked["id"]), 3)
    assert not line.of("error")
    line.check_numbers()


@pytest.mark.behaviour("X3", "L5", "X14")
async def test_a_stage_that_does_not_come_back_ends_the_session_by_type_after_the_wait(sole: House, dial: Dial) -> None:
    await asyncio.to_thread(sole.gateways[0].stop)
    await asyncio.to_thread(sole.restart_gateway, **BRIEF)
    try:
        line, idle = await dial(sole.realtime), await dial(sole.realtime)
        response_id, began = await line.speaking(WORDS), time.monotonic()
        async with gone(sole, "talker", line, idle):
            await failed(line, response_id)
            for each in (line, idle):
                assert await each.until_closed() == (1011, "stage_lost")
                assert [error["error"]["code"] for error in each.of("error")] == ["stage_lost"]
            assert time.monotonic() - began > WAIT_S
        await sole.wait_free()
    finally:
        await asyncio.to_thread(sole.gateways[0].stop)
        await asyncio.to_thread(sole.restart_gateway)
