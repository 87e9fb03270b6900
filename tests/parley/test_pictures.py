"""Camera frames of our client: checked before they leave, and each shown once and in order, whatever is cut."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import parley
from parley import Limits, events
from parley.client.entries import AudioFormat, Picture
from parley.client.outbox import Outbox

from .lasting import Cut, House, serving, signal
from .test_resume_exact import QUICK

Step = int | str
"""Samples of audio, or "see", or the text of an item."""


def picture(number: int) -> bytes:
    return b"\xff\xd8\xff" + number.to_bytes(4, "big")


def shown(count: int) -> list[str]:
    return [base64.b64encode(picture(number)).decode() for number in range(count)]


async def show(house: House, steps: list[Step], limits: Limits = QUICK) -> list[events.Event]:
    told: list[events.Event] = []
    async with serving(house) as url, parley.connect(url, limits=limits) as session, asyncio.timeout(20):
        sent = seen = 0
        for step in steps:
            if isinstance(step, int):
                await session.send_audio(signal(step, sent))
                sent += step
            elif step == "see":
                await session.see(picture(seen), max_slices=seen % 9 + 1)
                seen += 1
            else:
                await session.create_item(step)
        await session.create_item("end")
        async for event in session:
            told.append(event)
            if isinstance(event, events.ItemAdded) and event.item.text == "end":
                break
    return told


steps = st.lists(st.one_of(st.integers(1, 700), st.sampled_from(["see", "see", "a"])), max_size=12)
cuts = st.builds(
    Cut, st.sampled_from(["receive", "received", "send", "sent"]), st.integers(0, 14), st.sampled_from([1006, 1006, 1001, 1012])
)


@pytest.mark.behaviour("Y8")
@settings(max_examples=60, deadline=None)
@given(cuts=st.lists(cuts, max_size=4), steps=steps, lag=st.integers(0, 900), lag_frames=st.integers(0, 3))
def test_every_frame_arrives_once_and_in_order(cuts: list[Cut], steps: list[Step], lag: int, lag_frames: int) -> None:
    house = House(cuts)
    house.lag_samples, house.lag_frames = lag, lag_frames
    house.first_cut_after = 0 if not cuts or (cuts[0].where, cuts[0].at) not in (("send", 0), ("sent", 0)) else 1
    told = asyncio.run(show(house, steps))
    assert house.shown == shown(steps.count("see"))
    assert b"".join(one for one in house.said if isinstance(one, bytes)) == signal(sum(one for one in steps if isinstance(one, int)))
    assert not [event for event in told if isinstance(event, events.ResyncRequired | events.InputLost | events.Unread)]


async def test_it_stays_between_the_sound_before_and_after_it() -> None:
    for at in range(6):
        house = House([Cut("received", at)])
        await show(house, [100, "see", 200, "see", "see", 300])
        first, second, third = shown(3)
        assert house.heard == [
            *(signal(100), (-1, first), signal(200, 100), (-2, second), (-3, third), signal(300, 300), (1, "conversation.item.create"))
        ], at


async def test_a_frame_that_was_refused_does_not_count_and_one_that_nobody_could_read_does() -> None:
    for at in range(1, 8):
        house = House([Cut("received", at), Cut("received", 2)])
        house.refused_appends, house.unreadable_frames, house.replay_after_turns = {2}, {3}, 100
        told = await show(house, ["see"] * 6)
        assert house.shown == [one for number, one in enumerate(shown(6)) if number != 1], at
        refused = [event.error.code for event in told if isinstance(event, events.Error)]
        assert refused == ["no", "input_refused"]


def _new() -> Outbox:
    return Outbox(AudioFormat(), Limits(), keeps=True)


def _drain(outbox: Outbox) -> list[str]:
    told = []
    while (entry := outbox.head()) is not None:
        outbox.written(entry)
        told.append(entry.event_id)
    return told


def test_pictures_of_items_count_as_frames() -> None:
    """The server numbers them all in one row."""
    outbox = _new()
    outbox.add_picture("a", picture(0), 0)
    outbox.add_command("conversation.item.create", "b", {"item": {"content": [{"type": "input_image"}, {"type": "input_image"}]}})
    outbox.add_picture("c", picture(1), 0)
    outbox.add_picture("d", picture(2), 0)
    _drain(outbox)
    assert outbox.rewind(0, 1, 4) is None
    assert _drain(outbox) == ["d"]
    missing = outbox.rewind(0, 1, 2)
    assert missing is not None and (missing.frames, missing.commands) == (1, 0), "the second picture of an item that is not said again"
    assert _drain(outbox) == ["c", "d"]
    assert outbox.rewind(0, 1, 4) is None, "counted from what the server has"
    assert _drain(outbox) == []


def test_what_the_server_counts_further_than_the_client_is_believed() -> None:
    outbox = _new()
    outbox.add_picture("a", picture(0), 0)
    _drain(outbox)
    assert outbox.rewind(0, 0, 7) is None
    outbox.add_picture("b", picture(1), 0)
    assert _drain(outbox) == ["b"]
    assert outbox.rewind(0, 0, 7) is None
    assert _drain(outbox) == ["b"]


def test_a_frame_of_a_session_that_is_not_resumed_is_not_kept() -> None:
    outbox = Outbox(AudioFormat(), Limits(), keeps=False)
    outbox.add_picture("a", picture(0), 3)
    entry = outbox.head()
    assert isinstance(entry, Picture) and '"max_slice_nums":3' in entry.frame()
    _drain(outbox)
    assert outbox.held_bytes == 0


@pytest.mark.parametrize(
    ("given", "options", "param", "why"),
    [
        (b"GIF89a", {}, "picture", "neither"),
        (b"", {}, "picture", "neither"),
        ("/9j/", {}, "picture", "str, not bytes"),
        (picture(0), {"max_slices": 0}, "max_slices", "1 to 9"),
        (picture(0), {"max_slices": 10}, "max_slices", "1 to 9"),
        (picture(0), {"max_slices": True}, "max_slices", "1 to 9"),
        (picture(0) + bytes(200 * 1024), {}, "picture", "more than 204800"),
    ],
)
async def test_what_is_no_picture_is_refused_and_nothing_is_sent(given: Any, options: dict[str, Any], param: str, why: str) -> None:
    house = House()
    async with serving(house) as url, parley.connect(url) as session, asyncio.timeout(10):
        with pytest.raises(parley.BadPicture, match=why) as refused:
            await session.see(given, **options)
        await session.see(b"\x89PNG\r\n\x1a\n", max_slices=9)
        await session.create_item("end")
        while not isinstance(await anext(session), events.ItemAdded):
            pass
    assert refused.value.param == param and house.appends == 1
