"""Room for outputs, seen from two threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from parley_stage.v1 import stage_pb2

from stage_kit.audio import CLIENT_FORMATS, Format
from stage_kit.audio_out import AudioOut
from stage_kit.engine import Label
from stage_kit.outputs import OVERHEAD_BYTES, Output
from stage_kit.slot import Slot
from tests.stage_kit.support import PCM_24K, RESPONSE, Probe, serving, until_set

BOUND = 2 * OVERHEAD_BYTES
LABEL = Label(0, 1, "r1")


class Meanwhile(int):
    """A size during whose addition the engine, on its own thread, makes an output and asks whether there is room for more."""

    def __new__(cls, size: int, slot: Slot) -> Meanwhile:
        made = super().__new__(cls, size)
        made.slot, made.asked, made.has_room = slot, threading.Event(), True
        made.engine = threading.Thread(target=made._make)
        return made

    slot: Slot
    asked: threading.Event
    has_room: bool
    engine: threading.Thread

    def __radd__(self, other: int) -> int:
        self.engine.start()
        self.asked.wait(0.3)  # in vain where it has to wait for this
        return other + int(self)

    def _make(self) -> None:
        self.slot.emit(None, LABEL)
        self.has_room = self.slot.has_room()
        self.asked.set()


def test_an_engine_that_found_no_room_is_woken_when_some_is_freed_at_that_moment() -> None:
    slot = Slot("s", None, lambda _: None, lambda: None, BOUND, None)
    slot.emit(None, LABEL)
    freed = Meanwhile(OVERHEAD_BYTES, slot)
    woken = slot.freed(freed)
    freed.engine.join()
    assert slot.has_room() and (woken or freed.has_room)


async def test_room_that_comes_with_outputs_of_a_cancelled_epoch_wakes_the_engine() -> None:
    """They were on their way to the event loop when the epoch ended, and the engine saw the new append before they were forgotten."""
    engine = Probe()
    async with serving(engine, kept_output_bytes=3000) as (client, service):
        talk, host = client.converse(), service.hosts["probe"]
        await talk.open()
        engine.gate.clear()
        await talk.text("fill 4")
        await until_set(engine.busy)
        (session,) = host.held()
        text = stage_pb2.Payload(text=stage_pb2.Text(text="anew"))
        append = stage_pb2.Append(edge="core", position=2, previous=1, lane=stage_pb2.Lane.Name(RESPONSE), payload=text)
        engine.gate.set()
        # the event loop stands still meanwhile
        while session.slot.has_room() or host.runner.age_ms():
            pass
        session.append(stage_pb2.ToStage(authority=talk.authority, label=Label(1, 1, "r2").proto(), append=append))
        while ("cancelled", "s1") not in engine.log or host.runner.age_ms():
            pass
        assert not session.slot.has_room()
        assert await talk.texts(1) == ["anew"]


async def test_receipts_that_left_take_no_room() -> None:
    async with serving(Probe(output_rate=24000), kept_output_bytes=8000) as (client, _):
        talk = client.converse()
        await talk.open(output_format=PCM_24K)
        await talk.send(credit=stage_pb2.Credit(granted_ms=1_000_000))
        for unit in range(200):
            await talk.text(f"unit {unit}")
            position = (await talk.read("chunk")).chunk.position
            await talk.read("unit_done")
            await talk.send(ack=stage_pb2.Ack(position=position))


def test_a_response_ends_once_whatever_ended_since() -> None:
    """An engine that looks ahead may be told late of what failed."""
    left: list[Output] = []
    one, two, three = (Label(0, turn, f"r{turn}") for turn in (1, 2, 3))
    slot = Slot("s", None, left.append, lambda: None, BOUND, None)
    slot.fail(one, "it failed")
    for _ in range(4):
        slot.emit(None, two)
    assert [output.label for output in left if output.last] == [one, two], "the second overran its bound"
    slot.fail(one, "it failed")
    slot.emit(None, two)
    slot.freed(len(left) * OVERHEAD_BYTES)
    slot.emit(None, three, last=True)
    for label in (one, two, three):
        slot.fail(label, "it failed")
        slot.emit(None, two)
    assert [output.label for output in left if output.last] == [one, two, three] and left[-1].label == three
    assert slot.has_failed(one) and slot.has_failed(two) and not slot.has_failed(three)


@pytest.mark.parametrize(("encoding", "rate"), CLIENT_FORMATS)
def test_sound_counts_for_what_it_takes_and_hardly_more(encoding: int, rate: int) -> None:
    left: list[Output] = []
    slot = Slot("s", None, left.append, lambda: None, 1 << 30, AudioOut(Format(encoding, rate), 24_000, 250))
    largest = 2**31
    marks = [stage_pb2.Mark(text_chars=largest, audio_ms=ms, sentence_end=True) for ms in [100] * 9 + [260, largest]]
    slot.emit_audio(np.zeros(24_000, np.float32), LABEL, marks=marks, last=True)
    taken = [output.payload.ByteSize() for output in left if output.payload is not None]
    assert len(taken) == len(left) >= 4
    assert all(0 <= output.size - OVERHEAD_BYTES - size <= 256 for output, size in zip(left, taken, strict=True))
