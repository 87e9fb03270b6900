"""The client against real gateways, services and a real store: what is cut, killed and said again, counted by sample."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import parley
from parley import Limits, Session, events
from parley.commands.sound import Recording
from parley.commands.talk import Server, hold
from stage_kit.scripted.script import ramp
from tests.support.account import heard, voice
from tests.support.house import House
from tests.support.proxy import Proxy

PACKET_SAMPLES = 480
LIMITS = Limits(backoff_first_s=0.05, backoff_max_s=0.5)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    made = House(tmp_path_factory.mktemp("house"), services=("all",), gateways=2)
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture(autouse=True)
def both_gateways(house: House) -> None:
    if house.gateways[0].process.poll() is not None:
        house.restart_gateway()


@pytest.fixture
def proxy(house: House) -> Iterator[Proxy]:
    with Proxy(house.gateways[0].ready["http"]) as made:
        yield made


async def speak(session: Session, start: int, packets: int) -> int:
    """Says packets of 20 ms, five times as fast as one speaks. Returns the position after them."""
    for at in range(start, start + packets * PACKET_SAMPLES, PACKET_SAMPLES):
        await session.send_audio(voice(session.id, at, PACKET_SAMPLES).astype("<i2").tobytes())
        await asyncio.sleep(0.004)
    return start + packets * PACKET_SAMPLES


async def until(session: Session, told: list[events.Event], *kinds: type[events.Event]) -> events.Event:
    async for event in session:
        told.append(event)
        assert not isinstance(event, events.ResyncRequired | events.InputLost | events.Error), event
        if isinstance(event, kinds):
            return event
    raise AssertionError("the session ended")


def sound(told: list[events.Event]) -> bytes:
    return b"".join(event.audio for event in told if isinstance(event, events.AudioDelta))


def assert_ramp(session_id: str, pcm: bytes) -> None:
    """The reply is the known signal from its first sample on, without a hole."""
    came = np.frombuffer(pcm, "<i2")
    assert len(came) > 0
    assert np.array_equal(came, ramp(session_id, 0, len(came)))


def assert_in_order(told: list[events.Event]) -> None:
    numbers = [number for event in told if (number := events.number(event)) is not None]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


@pytest.mark.behaviour("X2", "Y8")
async def test_a_connection_that_is_cut_again_and_again_loses_no_sample_and_no_event(house: House) -> None:
    told: list[events.Event] = []
    async with parley.connect(house.http, limits=LIMITS) as session, asyncio.timeout(40):
        await session.update(turn_detection=None, transcription={"model": "default"})
        await until(session, told, events.SessionUpdated)
        at = 0
        for _ in range(8):
            at = await speak(session, at, 6)
            session.cut()
            at = await speak(session, at, 2)
            await until(session, told, events.Resumed)
        await session.commit()
        session.cut()
        transcript = await until(session, told, events.TranscriptionCompleted)
        await session.respond()
        await until(session, told, events.AudioDelta)
        session.cut()
        await until(session, told, events.Resumed)
        done = told[-1]
        while not isinstance(done, events.ResponseDone):
            done = await until(session, told, events.ResponseDone)
    assert isinstance(transcript, events.TranscriptionCompleted)
    assert transcript.transcript == f"heard {at // 24} ms"
    assert done.response.status == "completed"
    assert len([event for event in told if isinstance(event, events.Resumed)]) >= 9
    assert_in_order(told)
    assert_ramp(session.id, sound(told))
    for stage in ("turn", "asr"):
        [account] = heard(house.accounts, session.id, stage)
        assert (account.first, account.lost, account.doubled, account.wrong) == (0, 0, 0, 0)
        # the commit clears the detector's turn: it need not look at sound that still waited there
        assert account.end == at if stage == "asr" else account.end <= at
    await house.wait_free()


@pytest.mark.behaviour("X1", "X2", "Y8")
async def test_a_gateway_is_killed_in_mid_sentence_and_the_listener_hears_it_to_its_end(house: House, proxy: Proxy) -> None:
    told: list[events.Event] = []
    async with parley.connect(f"http://{proxy.address}", limits=LIMITS) as session, asyncio.timeout(40):
        await session.update(turn_detection=None, transcription=None, instructions="words=12")
        await until(session, told, events.SessionUpdated)
        at = await speak(session, 0, 20)
        await session.commit()
        async with session.respond() as reply:
            pieces = []
            async for delta in reply:
                if not isinstance(delta, events.AudioDelta):
                    continue
                pieces.append(delta.audio)
                if len(pieces) == 2:
                    proxy.target = house.gateways[1].ready["http"]
                    speaking = asyncio.create_task(speak(session, at, 30))
                    house.gateways[0].kill()
        assert (reply.status, reply.text.split()) == ("completed", reply.response.output[0].text.split())
        at = await speaking
        await session.commit()
        resumed = await until(session, told, events.Resumed)
        await until(session, told, events.InputCommitted)
        async with session.respond() as second:
            await second.wait()
        assert second.status == "completed"
    assert isinstance(resumed, events.Resumed)
    assert len(reply.text.split()) == 12
    assert_ramp(session.id, b"".join(pieces))
    for stage in ("turn", "asr"):
        [account] = heard(house.accounts, session.id, stage)
        assert (account.first, account.lost, account.doubled, account.wrong) == (0, 0, 0, 0)
        # the commit clears the detector's turn: it need not look at sound that still waited there
        assert account.end == at if stage == "asr" else account.end <= at


async def test_goodbye_ends_the_session_at_once(house: House) -> None:
    async with parley.connect(house.http, limits=LIMITS) as session:
        session.cut()
        assert isinstance(await anext(session), events.Resumed)
    await house.wait_free(20)  # whoever vanishes is waited for half a minute


@pytest.mark.behaviour("Y8")
async def test_talk_cuts_its_own_connection_and_the_answer_is_whole(house: House, tmp_path: Path) -> None:
    pcm = voice("talk", 0, 24_000).astype("<i2").tobytes()
    with (tmp_path / "screen").open("w") as file:
        console = Console(file=file, width=200, soft_wrap=True)
        assert (await hold(Server(house.http), Recording(pcm, 1000), tmp_path / "reply.wav", "manual", console, 20, cut_after_ms=0)).spoke
    screen = (tmp_path / "screen").read_text()
    assert "resumed" in screen
    assert "none missing, none twice" in screen
