"""A gateway is killed while a reply of the real models sounds: what is heard over both is what one alone would have let hear."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest

from tests.embedded.house import EmbeddedHouse
from tests.embedded.recordings import TEXTS, pcm, words
from tests.failover.line import Line
from tests.support.speech import silence

pytestmark = [pytest.mark.models, pytest.mark.timeout(240)]

QUESTION = "synth_q_sky_blue"
FOLLOW_UP = "Say that in one short sentence."
PATIENCE_S = 60.0
DELTAS = 5
"""Pieces of sound heard before the kill: the reply has begun, and it lasts much longer."""
Move = Callable[[Line], Awaitable[Line]]
HEARS = {"turn_detection": {"type": "server_vad"}, "transcription": {"model": "default"}}


class Told(msgspec.Struct, frozen=True):
    """All that a conversation was: what was heard of the user, and both replies."""

    heard: str
    text: str
    sound: bytes
    follow_up: str


@pytest.fixture(scope="module")
def uninterrupted() -> list[Told]:
    """The conversation on one gateway, once it was had."""
    return []


@pytest.fixture
async def dialled() -> AsyncIterator[list[Line]]:
    """Lines that are hung up after the test."""
    lines: list[Line] = []
    yield lines
    await asyncio.gather(*(socket.hang_up() for line in lines for socket in line.sockets))


async def _converse(line: Line, move: Move) -> Told:
    """A spoken question and a typed one; in the midst of the first reply `move` may put the conversation onto another line."""
    await line.configure(audio={"input": HEARS})
    await line.append(silence(300) + pcm(QUESTION) + silence(1200))
    response = (await line.until("response.created", PATIENCE_S))["response"]
    for _ in range(DELTAS):
        await line.until("response.output_audio.delta", PATIENCE_S)
    assert not line.of("response.done", "response.output_audio.done"), "the reply sounds"
    line = await move(line)
    done = await line.until(lambda e: e["type"] == "response.done", PATIENCE_S)
    assert done["response"]["id"] == response["id"] and done["response"]["status"] == "completed"
    (heard,) = line.of("conversation.item.input_audio_transcription.completed")
    await line.type_in(FOLLOW_UP)
    await line.send("response.create", response={"output_modalities": ["text"]})
    told = (await line.until("response.done", PATIENCE_S))["response"]
    assert told["status"] == "completed" and not line.of("error")
    line.check_numbers()
    text = line.transcript(response["id"])
    assert text == done["response"]["output"][0]["content"][0]["transcript"]
    return Told(heard["transcript"], text, line.audio(response["id"]), told["output"][0]["content"][0]["text"])


async def _stay(line: Line) -> Line:
    return line


@pytest.mark.behaviour("X1")
@pytest.mark.parametrize("extended", [True, False], ids=["ours", "stock"])
async def test_the_joined_reply_is_that_of_an_uninterrupted_run(
    embedded_house: EmbeddedHouse, uninterrupted: list[Told], dialled: list[Line], extended: bool
) -> None:
    """Words, every sample, and what the model answers next: all as if nothing had happened."""
    here, there = embedded_house.realtimes

    async def move(line: Line) -> Line:
        before = len(line.of("response.output_audio.delta"))
        await asyncio.to_thread(embedded_house.kill_gateway)
        await line.until_closed()
        resumed = await line.resume(there)
        await resumed.until("response.output_audio.delta", PATIENCE_S)
        assert len(resumed.of("response.output_audio.delta")) > before, "the other one goes on with it"
        return resumed

    if not uninterrupted:
        dialled.append(await Line.dial(here))
        uninterrupted.append(await _converse(dialled[-1], _stay))
    dialled.append(await Line.dial(here, extended=extended))
    try:
        told = await _converse(dialled[-1], move)
    finally:
        await asyncio.to_thread(embedded_house.restart_gateway)
    (whole,) = uninterrupted
    assert words(whole.heard) == words(TEXTS[QUESTION])
    assert (told.heard, told.text, told.follow_up) == (whole.heard, whole.text, whole.follow_up)
    assert told.sound == whole.sound, "sample by sample"
