"""Whatever is cut, and wherever: every sample and command arrives once and in order, every event is told once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import parley
from parley import Limits, events

from .lasting import Cut, House, Where, serving, signal

QUICK = Limits(backoff_first_s=0.002, backoff_max_s=0.02, grace_s=10, resume_timeout_s=2)
REPLY_SAMPLES = 1200
Step = int | str


async def converse(house: House, steps: list[Step], limits: Limits = QUICK) -> list[events.Event]:
    """Steps are samples of audio to send, and the texts of items; then one answer is asked for. Returns all events up to its end."""
    house.reply_samples = REPLY_SAMPLES
    told: list[events.Event] = []
    async with serving(house) as url, parley.connect(url, limits=limits) as session, asyncio.timeout(20):
        sent = 0
        for step in steps:
            if isinstance(step, int):
                await session.send_audio(signal(step, sent))
                sent += step
            else:
                await session.create_item(step)
        await session.respond()
        async for event in session:
            told.append(event)
            if isinstance(event, events.ResponseDone):
                break
    return told


def expected(steps: list[Step]) -> Iterator[bytes | tuple[int, str]]:
    sent, command, audio = 0, 0, b""
    for step in [*steps, ""]:
        if isinstance(step, int):
            audio += signal(step, sent)
            sent += step
            continue
        if audio:
            yield audio
        command, audio = command + 1, b""
        yield command, "conversation.item.create" if step else "response.create"


def assert_whole(house: House, steps: list[Step], told: list[events.Event]) -> None:
    assert house.heard == list(expected(steps))
    numbers = [number for event in told if (number := events.number(event)) is not None]
    assert numbers == list(range(2, len(house.journal) + 1))
    assert not [event for event in told if isinstance(event, events.ResyncRequired | events.InputLost | events.Unread)]
    assert b"".join(event.audio for event in told if isinstance(event, events.AudioDelta)) == signal(REPLY_SAMPLES)
    assert len([event for event in told if isinstance(event, events.Resumed)]) <= house.resumes


cuts = st.builds(
    Cut,
    st.sampled_from(["receive", "half", "received", "send", "sent"]),
    st.integers(0, 14),
    st.sampled_from([1006, 1006, 1006, 1001, 1012, 1013]),
)
steps = st.lists(st.one_of(st.integers(1, 700), st.sampled_from(["a", "b"])), max_size=10)


@settings(max_examples=80, deadline=None)
@given(cuts=st.lists(cuts, max_size=5), steps=steps, lag=st.integers(0, 900))
def test_nothing_is_lost_or_doubled_wherever_it_is_cut(cuts: list[Cut], steps: list[Step], lag: int) -> None:
    house = House(cuts)
    house.lag_samples = lag
    house.first_cut_after = 0 if not cuts or (cuts[0].where, cuts[0].at) not in (("send", 0), ("sent", 0)) else 1
    assert_whole(house, steps, asyncio.run(converse(house, steps)))


@pytest.mark.parametrize("where", ["receive", "half", "received", "send", "sent"])
async def test_each_step_of_a_resume_may_be_cut_in_turn(where: Where) -> None:
    """The connection is lost at message 1, the resume after it at message 0, 1, 2, ..., each time anew."""
    steps: list[Step] = [100, "a", 200, 300, "b", 50]
    for at in range(12):
        house = House([Cut("received", 1), *[Cut(where, at)] * 3])
        house.lag_samples = 150
        assert_whole(house, steps, await converse(house, steps))
        assert house.resumes >= 1


async def test_audio_that_the_server_refused_does_not_count() -> None:
    """The refusal is told on the connection that is lost: the client learns it from the replay, before it sends anything again."""
    for at in range(1, 8):
        house = House([Cut("received", at), Cut("received", 3)])
        house.refused_appends, house.replay_after_turns = {2, 5}, 100
        steps: list[Step] = [100, 100, 100, 100, 100, 100]
        await converse(house, steps)
        kept = b"".join(signal(100, start) for start in (0, 200, 300, 500))
        assert house.heard[:1] == [kept], at


async def test_positions_go_on_through_a_change_of_format() -> None:
    for at in range(1, 9):
        house = House([Cut("received", at), Cut("half", 2)])
        house.refused_updates = {1}
        async with serving(house) as url, parley.connect(url, limits=QUICK) as session, asyncio.timeout(10):
            await session.send_audio(signal(240))
            await session.update(audio={"input": {"format": {"type": "audio/pcma"}}})
            await session.send_audio(signal(60, 240))
            await session.update(audio={"input": {"format": {"type": "audio/pcmu"}}})
            await session.send_audio(bytes(range(100)))
            await session.send_audio(bytes(range(100, 200)))
            await session.create_item("end")
            while not isinstance(await anext(session), events.ItemAdded):
                pass
        change, create = "session.update", "conversation.item.create"
        assert house.heard == [signal(240), (1, change), signal(60, 240), (2, change), bytes(range(200)), (3, create)], at


async def test_half_a_sample_waits_for_its_other_half() -> None:
    house = House([Cut("received", 1), Cut("half", 1)])
    pcm = signal(100)
    async with serving(house) as url, parley.connect(url, limits=QUICK) as session, asyncio.timeout(10):
        for size in (1, 33, 67, 99):
            await session.send_audio(pcm[:size])
            pcm = pcm[size:]
        await session.commit()
        await session.create_item("end")
        while not isinstance(await anext(session), events.ItemAdded):
            pass
    assert house.heard[0] == signal(100)
