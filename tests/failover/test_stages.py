"""A stage replica is lost: only that stage is placed anew, an open response ends by type, the open turn is heard again."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator

import grpc
import pytest
from parley_stage.v1 import stage_pb2, stage_pb2_grpc

from tests.e2e.conftest import MakeHouse
from tests.failover.conftest import PATIENT, Dial
from tests.failover.line import Line, until
from tests.support.checks import check_begun, check_whole
from tests.support.house import STAGES, House
from tests.support.process import Child
from tests.support.speech import silence, tone

WORDS = 8
QUICK = {
    **PATIENT,
    "PARLEY_GRACE_MS": "1000",
    "PARLEY_REAP_INTERVAL_S": "0.3",
    "PARLEY_CLOSE_TIMEOUT_MS": "500",
    "PARLEY_PULSE_TIMEOUT_MS": "2500",
}
SPOKEN = ("llm", "talker", "vocoder")


@pytest.fixture(scope="module")
def doubled(make_house: MakeHouse) -> House:
    """Each stage a process of its own, and each twice."""
    return make_house(services=STAGES, replicas=2, gateway=QUICK)


@pytest.fixture
async def spare(doubled: House) -> AsyncIterator[House]:
    """Whole, and afterwards whole again."""
    yield doubled
    for child in doubled.services.values():
        child.signal(signal.SIGCONT)
        if child.process.poll() is not None:
            await asyncio.to_thread(doubled.restart_service, child.name)
    await doubled.wait_free()


async def holder(house: House, stage: str, session_id: str) -> Child:
    """The process that holds the session at the stage."""
    for child in house.services.values():
        if child.name.partition("-")[0] == stage and child.process.poll() is None:
            async with grpc.aio.insecure_channel(child.ready["grpc"]) as channel:
                asked = stage_pb2.InspectRequest(session_id=session_id)
                if (await stage_pb2_grpc.StageStub(channel).Inspect(asked, timeout=30)).sessions:
                    return child
    raise AssertionError(f"nobody holds {stage}")


async def lose(house: House, stage: str, line: Line) -> None:
    await asyncio.to_thread((await holder(house, stage, line.session_id)).kill)


def placements(house: House, stage: str) -> float:
    """How often the stage was placed anew so far."""
    return house.metric("parley_gateway_replacements_total", stage=stage, outcome="placed")


async def until_placed(house: House, stage: str, before: float) -> None:
    async def placed() -> bool:
        return await asyncio.to_thread(placements, house, stage) > before

    await until(placed)


async def said(line: Line, ms: int) -> None:
    """The user talks, as fast as one does."""
    for _ in range(ms // 20):
        await line.append(tone(20))
        await asyncio.sleep(0.02)


@pytest.mark.behaviour("X3", "X16")
@pytest.mark.parametrize("stage", ["turn", "asr"])
async def test_the_open_turn_is_heard_again_whole(spare: House, dial: Dial, stage: str) -> None:
    line = await dial(spare.realtime)
    transcription = {"transcription": {"model": "whisper-1"}, "turn_detection": {"type": "server_vad"}}
    await line.configure(audio={"input": transcription}, instructions="words=2")
    await line.append(silence(300))
    await said(line, 400)
    started = await line.until("input_audio_buffer.speech_started")
    await lose(spare, stage, line)
    await said(line, 400)
    await line.append(silence(800))
    stopped = await line.until("input_audio_buffer.speech_stopped")
    spoken_ms = stopped["audio_end_ms"] - started["audio_start_ms"]
    assert spoken_ms == pytest.approx(800, abs=60)
    heard = await line.until("conversation.item.input_audio_transcription.completed")
    assert heard["transcript"] == f"heard {spoken_ms} ms"
    done = (await line.until("response.done"))["response"]
    check_whole(line, done, 2)
    assert len(line.of("input_audio_buffer.speech_started")) == 1 and not line.of("error")
    line.check_numbers()


@pytest.mark.behaviour("X3")
async def test_words_that_were_awaited_are_asked_for_again(spare: House, dial: Dial) -> None:
    """The recogniser dies with a committed turn: its replacement hears the turn and answers for it."""
    line = await dial(spare.realtime)
    await line.configure(audio={"input": {"turn_detection": None, "transcription": {"model": "whisper-1"}}})
    await line.append(tone(700))
    child = await holder(spare, "asr", line.session_id)
    child.signal(signal.SIGSTOP)
    await line.send("input_audio_buffer.commit")
    await line.until("input_audio_buffer.committed")
    await asyncio.to_thread(child.kill)
    heard = await line.until("conversation.item.input_audio_transcription.completed")
    assert heard["transcript"] == "heard 700 ms"


@pytest.mark.behaviour("X3")
@pytest.mark.parametrize("stage", SPOKEN)
async def test_a_reply_ends_as_failed_and_the_next_works_on_another_replica(spare: House, dial: Dial, stage: str) -> None:
    other, line = await dial(spare.realtime), await dial(spare.realtime, extended=True)
    await line.reply("remember this", instructions="words=1")
    slow = "words_per_s=4 " if stage == "llm" else ""
    made = await line.ask("hello", instructions=f"{slow}words={2 * WORDS}")
    await line.until("response.output_audio.delta")
    await lose(spare, stage, line)
    done = await line.response_done(made["id"])
    assert done["status"] == "failed" and done["status_details"]["error"]["code"] == "stage_lost"
    check_begun(line, made["id"], 2 * WORDS)
    check_whole(line, await line.reply("again", instructions="words=3"), 3)
    told = await line.reply("recite", instructions="words=1", output_modalities=["text"])
    assert "remember this" in told["output"][0]["content"][0]["text"]
    check_whole(other, await other.reply("hello", instructions="words=2"), 2)
    assert not line.of("error") and not other.of("error")
    line.check_numbers()


@pytest.mark.behaviour("X3")
@pytest.mark.parametrize("stage", STAGES)
async def test_a_loss_in_silence_is_not_heard_of(spare: House, dial: Dial, stage: str) -> None:
    line = await dial(spare.realtime)
    transcription = {"transcription": {"model": "whisper-1"}, "turn_detection": {"type": "server_vad"}}
    await line.configure(audio={"input": transcription}, instructions="words=3")
    await line.reply("hello", instructions="words=1")
    before = placements(spare, stage)
    await lose(spare, stage, line)
    await until_placed(spare, stage, before)
    await line.append(tone(400) + silence(800))
    done = (await line.until("response.done"))["response"]
    check_whole(line, done, 3)
    assert not line.of("error")
    line.check_numbers()


@pytest.mark.behaviour("X3")
@pytest.mark.parametrize("stage", ["vocoder", "asr"])
async def test_a_frozen_replica_is_found_by_its_pulse(spare: House, dial: Dial, stage: str) -> None:
    line = await dial(spare.realtime)
    await line.reply("hello", instructions="words=1")
    child = await holder(spare, stage, line.session_id)
    before = placements(spare, stage)
    child.signal(signal.SIGSTOP)
    try:
        made = await line.ask("hello", instructions=f"words={WORDS}")
        if stage == "vocoder":
            done = await line.response_done(made["id"])
            assert done["status"] == "failed" and done["status_details"]["error"]["code"] == "stage_lost"
        else:
            check_whole(line, await line.response_done(made["id"]), WORDS)
        await until_placed(spare, stage, before)
        check_whole(line, await line.reply("again", instructions="words=2"), 2)
    finally:
        child.signal(signal.SIGCONT)
    # what the old replica still holds is nobody's: it hears so and lets go
    await spare.wait_free_but(line.session_id)
    check_whole(line, await line.reply("and again", instructions="words=2"), 2)
    assert not line.of("error")
    line.check_numbers()


@pytest.mark.behaviour("K27")
async def test_a_conversation_stays_with_its_replicas_through_cancels_and_leaves_the_others_alone(spare: House, dial: Dial) -> None:
    line, other = await dial(spare.realtime), await dial(spare.realtime)
    names = [(await holder(spare, stage, line.session_id)).name for stage in STAGES]
    for _ in range(2):
        made = await line.ask("hello", instructions=f"words={WORDS}")
        await line.until("response.output_audio.delta")
        await line.send("response.cancel", response_id=made["id"])
        assert (await line.response_done(made["id"]))["status"] == "cancelled"
    check_whole(line, await line.reply("again", instructions="words=3"), 3)
    assert [(await holder(spare, stage, line.session_id)).name for stage in STAGES] == names
    await line.socket.close()
    assert await spare.wait_free_but(other.session_id)
    check_whole(other, await other.reply("hello", instructions="words=2"), 2)
