"""Limits of our client that a silent network shows, and what it holds back in an outage."""

from __future__ import annotations

import asyncio
import time

import pytest

import parley
from parley import Limits, events
from parley.client.entries import COMMAND_OVERHEAD_BYTES, AudioFormat
from parley.client.outbox import Outbox
from tests.parley.lasting import House, serving, signal
from tests.support.proxy import Proxy

RATE = 24_000
PIECE = RATE // 100


def _written(outbox: Outbox) -> None:
    while (entry := outbox.head()) is not None:
        outbox.written(entry)


@pytest.mark.behaviour("X14")
def test_an_outage_holds_back_so_much_sound_and_no_more() -> None:
    outbox = Outbox(AudioFormat(), Limits(audio_ring_ms=100), keeps=True)
    most = RATE // 10
    outbox.add_audio("a", signal(most - PIECE))
    assert outbox.has_room()
    outbox.add_audio("b", signal(PIECE))
    assert not outbox.has_room()
    _written(outbox)
    assert outbox.rewind(0, 0) is None, "all of it is kept"
    _written(outbox)
    outbox.add_audio("c", signal(PIECE))
    _written(outbox)
    missing = outbox.rewind(0, 0)
    assert missing is not None and missing.samples == most - PIECE, "the oldest piece went"


@pytest.mark.behaviour("X14")
def test_an_outage_holds_back_so_many_commands_and_not_a_byte_more() -> None:
    def filled(limit: int) -> Outbox:
        outbox = Outbox(AudioFormat(), Limits(command_log_bytes=limit), keeps=True)
        outbox.add_command("response.create", "e1", {})
        return outbox

    outbox = filled(10_000)
    size = outbox.held_bytes + COMMAND_OVERHEAD_BYTES
    assert filled(size + 1).has_room() and not filled(size).has_room()
    for limit, commands in ((size, 0), (size - 1, 1)):
        outbox = filled(limit)
        _written(outbox)
        missing = outbox.rewind(0, 0)
        assert (missing.commands if missing else 0) == commands


@pytest.mark.behaviour("X14")
def test_an_outage_holds_back_so_many_pictures_and_not_a_byte_more() -> None:
    picture = b"\xff\xd8\xff" + bytes(97)
    outbox = Outbox(AudioFormat(), Limits(frame_ring_bytes=200), keeps=True)
    outbox.add_picture("a", picture, 0)
    outbox.add_picture("b", picture[:-1], 0)
    assert outbox.has_room()
    _written(outbox)
    assert outbox.rewind(0, 0, 0) is None, "both are kept"
    outbox.add_picture("c", b"\xff", 0)
    assert not outbox.has_room()
    _written(outbox)
    outbox.add_picture("d", b"\xff", 0)
    _written(outbox)
    missing = outbox.rewind(0, 0, 0)
    assert missing is not None and (missing.frames, missing.samples, missing.commands) == (1, 0, 0), "the oldest went"
    again = []
    while (entry := outbox.head()) is not None:
        outbox.written(entry)
        again.append(entry.event_id)
    assert again == ["b", "c", "d"]


@pytest.mark.behaviour("X14")
async def test_a_picture_may_have_so_many_bytes_and_not_one_more() -> None:
    picture = b"\xff\xd8\xff" + bytes(97)
    async with serving(House()) as url, parley.connect(url, limits=Limits(picture_bytes=len(picture))) as session:
        await session.see(picture)
        with pytest.raises(parley.BadPicture, match="101 bytes, more than 100"):
            await session.see(picture + b"\0")


@pytest.mark.behaviour("X14")
async def test_a_server_that_answers_no_ping_is_gone() -> None:
    """One that answers is kept far beyond both times; the silent one is left after them, and its session is resumed."""
    limits = Limits(ping_interval_s=0.2, ping_timeout_s=0.4, backoff_first_s=0.01, resume_timeout_s=10)
    lost, house = asyncio.Event(), House()

    def told(state: str) -> None:
        if state == "reconnecting":
            lost.set()

    async with serving(house) as url, asyncio.timeout(30):
        with Proxy(url.removeprefix("http://")) as proxy:
            async with parley.connect(f"http://{proxy.address}", limits=limits, on_state=told) as session:
                await asyncio.sleep(3 * (limits.ping_interval_s + limits.ping_timeout_s))
                assert house.sockets == 1 and not lost.is_set(), "it answered"
                held = time.monotonic()
                proxy.hold()
                await lost.wait()
                assert time.monotonic() - held >= limits.ping_timeout_s
                proxy.release()
                while not isinstance(await anext(session), events.Resumed):
                    pass


@pytest.mark.behaviour("X14")
async def test_a_goodbye_waits_for_its_answer_as_long_as_it_may() -> None:
    limits = Limits(close_timeout_s=0.4)
    async with serving(House()) as url, asyncio.timeout(30):
        with Proxy(url.removeprefix("http://")) as proxy:
            async with parley.connect(f"http://{proxy.address}", limits=limits):
                proxy.hold()
                began = time.monotonic()
            assert time.monotonic() - began >= limits.close_timeout_s
            proxy.release()
