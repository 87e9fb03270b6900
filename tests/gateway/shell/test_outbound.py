"""What waits for the socket: order, bounds, and silence on demand."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.outbound import Frame, Outbound

KIB = 1024


def audio(response_id: str, text: str = "a") -> Frame:
    return Frame(text, response_id, 0.0, "AudioDelta")


def control(text: str = "c") -> Frame:
    return Frame(text, "", 0.0, "ResponseDone")


async def drained(outbound: Outbound) -> list[Frame]:
    outbound.end()
    frames = []
    while (frame := await outbound.get()) is not None:
        frames.append(frame)
    return frames


@pytest.mark.behaviour("O4", "F9")
async def test_a_mute_takes_one_response_and_keeps_the_rest_in_order() -> None:
    outbound = Outbound(KIB)
    for frame in (control("1"), audio("r1", "2"), audio("r2", "3"), control("4"), audio("r1", "5"), control("6")):
        assert outbound.put(frame)
    outbound.mute("r1")
    assert outbound.put(audio("r1", "late")) and outbound.put(audio("r2", "7"))
    assert [frame.text for frame in await drained(outbound)] == ["1", "3", "4", "6", "7"]


async def test_a_muted_response_frees_its_bytes_and_its_name() -> None:
    outbound = Outbound(10)
    assert outbound.put(audio("r1", "x" * 10)) and not outbound.put(audio("r2", "x"))
    outbound.mute("r1")
    assert outbound.put(audio("r2", "x" * 10))
    outbound.settle("r1")
    assert len(outbound) == 1


@pytest.mark.behaviour("O5", "W20")
async def test_control_has_a_reserve_that_sound_cannot_take() -> None:
    outbound = Outbound(KIB)
    assert outbound.put(audio("r", "x" * KIB)) and not outbound.put(audio("r", "x"))
    assert outbound.put(control("c" * Outbound.RESERVE_BYTES)) and not outbound.put(control("c"))
    assert [frame.kind for frame in await drained(outbound)] == ["AudioDelta", "ResponseDone"]


async def test_a_reader_waits_for_a_frame_and_for_the_end() -> None:
    outbound = Outbound(KIB)
    reading = asyncio.create_task(outbound.get())
    await asyncio.sleep(0)
    outbound.put(control("now"))
    frame = await reading
    assert frame is not None and frame.text == "now"
    reading = asyncio.create_task(outbound.get())
    await asyncio.sleep(0)
    outbound.end()
    assert await reading is None


frames = st.tuples(st.sampled_from(["", "r1", "r2", "r3"]), st.integers(0, 40))
actions = st.lists(st.one_of(frames, st.sampled_from(["mute r1", "mute r2", "get"])), max_size=60)


@pytest.mark.behaviour("M2", "B2")
@given(actions)
def test_whatever_happens_bytes_add_up_and_order_stays(script: list[tuple[str, int] | str]) -> None:
    asyncio.run(_follow(script))


async def _follow(script: list[tuple[str, int] | str]) -> None:
    outbound, model, muted = Outbound(100), list[Frame](), set[str]()
    for number, action in enumerate(script):
        if isinstance(action, tuple):
            response_id, size = action
            frame = Frame(f"{number:02}" + "x" * size, response_id, 0.0, "any")
            held = sum(len(each.text) for each in model)
            fits = held + len(frame.text) <= 100 + (0 if response_id else Outbound.RESERVE_BYTES)
            assert outbound.put(frame) == (fits or response_id in muted)
            if fits and response_id not in muted:
                model.append(frame)
        elif action == "get":
            if model:
                assert await outbound.get() == model.pop(0)
        else:
            muted.add(action[5:])
            outbound.mute(action[5:])
            model = [each for each in model if each.response_id not in muted]
    assert await drained(outbound) == model


@pytest.mark.behaviour("R6", "O5")
async def test_what_is_broken_off_says_nothing_more() -> None:
    outbound = Outbound(KIB)
    assert outbound.put(control("1")) and outbound.put(audio("r", "2"))
    outbound.overflow()
    assert outbound.broken_off.is_set() and outbound.overflowed and not outbound.left
    assert outbound.put(control("3")), "nobody is told that it was not taken"
    assert await outbound.get() is None and len(outbound) == 0


COUNTED = Frame("sound", "r", 0.0, "AudioDelta", skipped="skipped")


@pytest.mark.behaviour("O4", "R2")
async def test_muted_sound_leaves_its_number_to_clients_that_count_once_its_end_is_settled() -> None:
    outbound = Outbound(KIB)
    assert outbound.put(control("before")) and outbound.put(COUNTED) and outbound.put(audio("r"))
    outbound.mute("r")
    assert outbound.put(COUNTED) and outbound.put(control("end"))
    frame = await outbound.get()
    assert frame is not None and frame.text == "before"
    reading = asyncio.create_task(outbound.get())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not reading.done(), "the commit that ends the response may still be lost"
    outbound.settle("r")
    frame = await reading
    assert frame is not None and frame.text == "skipped" and not frame.is_sound
    assert [frame.text for frame in await drained(outbound)] == ["skipped", "end"]


async def test_what_was_never_settled_is_never_told() -> None:
    outbound = Outbound(KIB)
    assert outbound.put(control("1")) and outbound.put(COUNTED) and outbound.put(control("3"))
    outbound.mute("r")
    assert [frame.text for frame in await drained(outbound)] == ["1"], "a client that counts would miss the second"


async def test_a_stand_in_is_control_and_takes_nothing_of_the_room_for_sound() -> None:
    outbound = Outbound(10)
    outbound.mute("r")
    assert outbound.put(COUNTED) and outbound.put(COUNTED)
    assert not outbound.put(audio("other", "x"))
