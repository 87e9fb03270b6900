"""The scripted native stages: units out of real samples, decisions, thoughts that become codes and sound, and what cuts them short."""

from __future__ import annotations

import asyncio
import json
from binascii import b2a_base64

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from parley_stage.v1 import stage_pb2

from stage_kit import InvalidConfig, Label
from stage_kit.scripted import ScriptedDuplex, duplex_engines, ramp, reply
from tests.stage_kit.support import INPUT, PCM_24K, WAIT_S, Conversation, serving

UNIT_MS = 200
UNIT = 24 * UNIT_MS
Decision = stage_pb2.Decision
LOUD = (8000 * np.sin(np.arange(UNIT) * 0.1)).astype("<i2")
QUIET = np.zeros(UNIT, "<i2")


class Ear:
    """Says units to the model, each number of samples once."""

    def __init__(self, talk: Conversation) -> None:
        self.talk, self.at = talk, 0

    async def say(self, *pieces: NDArray[np.int16]) -> None:
        for piece in pieces:
            audio = stage_pb2.Audio(format=PCM_24K, data=piece.tobytes(), samples=len(piece), start_sample=self.at)
            previous, self.at = self.at, self.at + len(piece)
            await self.talk.append(stage_pb2.Payload(audio=audio), Label(), edge="client", lane=INPUT, position=self.at, previous=previous)


async def units(talk: Conversation, count: int) -> list[list[stage_pb2.FromStage]]:
    """All that the model said, unit by unit."""
    found: list[list[stage_pb2.FromStage]] = [[]]
    async with asyncio.timeout(WAIT_S):
        while len(found) <= count:
            message = await talk.read("chunk", "unit_done")
            found[-1].append(message)
            if message.HasField("unit_done"):
                found.append([])
    return found[:-1]


def kinds(unit: list[stage_pb2.FromStage]) -> list[str]:
    """What a unit made, in order."""
    told = []
    for message in unit:
        payload = message.chunk.payload
        kind = payload.WhichOneof("value") or "unit_done"
        told.append(Decision.Kind.Name(payload.decision.kind).removeprefix("KIND_") if kind == "decision" else kind)
    return told


async def test_a_turn_answers_what_was_heard() -> None:
    async with serving(*duplex_engines(unit_ms=UNIT_MS)) as (client, _):
        talk = client.converse("s1", "thinker")
        await talk.open('{"turn_units": 2}', input_format=PCM_24K)
        ear = Ear(talk)
        await ear.say(QUIET, LOUD, LOUD, QUIET, QUIET, QUIET, QUIET)
        heard = await units(talk, 6)
    assert [kinds(unit) for unit in heard] == [
        ["LISTEN", "unit_note", "unit_done"],
        ["LISTEN", "unit_note", "unit_done"],
        ["LISTEN", "unit_note", "unit_done"],
        ["SPEAK", "text", "thought", "unit_note", "unit_done"],
        ["SPEAK", "text", "thought", "TURN_END", "unit_note", "unit_done"],
        ["LISTEN", "unit_note", "unit_done"],
    ]
    spoken = [message.chunk for unit in heard[3:5] for message in unit[:-2]]
    assert {(chunk.label.turn, chunk.label.response_id) for chunk in spoken} == {(1, "t1")}
    text = "".join(chunk.payload.text.text for chunk in spoken)
    assert text == "".join(reply("s1/1/0", 3)) + " " + "".join(reply("s1/1/1", 3))
    assert [chunk.payload.WhichOneof("value") for chunk in spoken if chunk.last] == ["text", "thought"]
    assert [unit[-1].unit_done.unit for unit in heard] == list(range(6))
    times = [(unit[0].chunk.payload.decision.t_ms, unit[0].chunk.payload.decision.decided_at_ms) for unit in heard]
    assert times == [(UNIT_MS * n, UNIT_MS * (n + 1)) for n in range(6)]


@pytest.mark.behaviour("S1")
async def test_thoughts_become_codes_and_sound_that_are_known() -> None:
    async with serving(*duplex_engines(unit_ms=UNIT_MS)) as (client, _):
        heard = {}
        for session in ("one", "two"):
            model, coder, sounder = (client.converse(session, stage) for stage in ("thinker", "talker", "vocoder"))
            await model.open('{"script": "lsse"}', input_format=PCM_24K)
            await coder.open()
            await sounder.open(output_format=PCM_24K)
            await sounder.send(credit=stage_pb2.Credit(granted_ms=60_000))
            await Ear(model).say(*[QUIET] * 5)
            thoughts = [m.chunk for unit in await units(model, 4) for m in unit if m.chunk.payload.HasField("thought")]
            for number, chunk in enumerate(thoughts, 1):
                await coder.append(chunk.payload, Label.of(chunk.label), edge="thinker", position=number, last=chunk.last)
            codes = [(await coder.read("chunk")).chunk for _ in thoughts]
            assert [list(chunk.payload.codes.codes) for chunk in codes] == [list(range(n, n + 5)) for n in (0, 5, 10)]
            for number, chunk in enumerate(codes, 1):
                await sounder.append(chunk.payload, Label.of(chunk.label), edge="talker", position=number, last=chunk.last)
            data, last = b"", False
            while not last:
                chunk = (await sounder.read("chunk")).chunk
                data, last = data + chunk.payload.audio.data, chunk.last
            heard[session] = np.frombuffer(data, "<i2")
        for session, samples in heard.items():
            assert np.array_equal(samples, ramp(session, 0, 15 * 960))


@pytest.mark.behaviour("T5")
async def test_silence_closes_a_unit_only_for_the_turn_in_progress_and_when_no_input_did() -> None:
    async with serving(*duplex_engines(unit_ms=UNIT_MS)) as (client, _):
        talk = client.converse("s1", "thinker")
        await talk.open('{"script": "sssssss"}', input_format=PCM_24K)
        ear, number = Ear(talk), 0

        async def go_on(end_ms: int, turn: int = 1, epoch: int = 0) -> None:
            nonlocal number
            number += 1
            control = stage_pb2.Control(kind=stage_pb2.Control.KIND_CONTINUE, start_ms=end_ms)
            await talk.append(stage_pb2.Payload(control=control), Label(epoch, turn), edge="core", lane=INPUT, position=number)

        await ear.say(QUIET[: UNIT // 2])
        await go_on(400)  # nobody speaks yet
        await ear.say(QUIET[UNIT // 2 :], QUIET[: UNIT // 2])
        await units(talk, 1)
        await go_on(200)  # a unit that is over
        await go_on(400, turn=2)
        await go_on(400, epoch=3)
        await go_on(400)
        second = (await units(talk, 1))[0]
        assert second[0].chunk.payload.decision.decided_at_ms == pytest.approx(300, abs=10), "silence is no time of the client's"
        assert second[-1].unit_done.consumed_ms == pytest.approx(100, abs=10)
        await ear.say(QUIET)
        third = (await units(talk, 1))[0]
        assert third[0].chunk.payload.decision.decided_at_ms == pytest.approx(500, abs=10)


async def test_a_unit_is_closed_early_and_silence_behind_it_passed_over_as_far_as_it_was_filled() -> None:
    async with serving(*duplex_engines(unit_ms=UNIT_MS)) as (client, _):
        talk = client.converse("s1", "thinker")
        await talk.open('{"script": "lllss"}', input_format=PCM_24K)
        ear, number = Ear(talk), 0

        async def order(kind: stage_pb2.Control.Kind, start_ms: int, end_ms: int = 0, generation: int = 0) -> None:
            nonlocal number
            number += 1
            payload = stage_pb2.Payload(control=stage_pb2.Control(kind=kind, start_ms=start_ms, end_ms=end_ms))
            await talk.append(payload, Label(), edge="core", lane=INPUT, position=number, input_generation=generation)

        close, skip = stage_pb2.Control.KIND_CLOSE_UNIT, stage_pb2.Control.KIND_SKIP_SILENCE
        await ear.say(QUIET[: UNIT // 2])
        await order(close, 300)
        await order(close, 300)
        first = span((await units(talk, 1))[0])
        assert first == (0, pytest.approx(100, abs=15))
        await ear.say(QUIET[: UNIT // 2])
        await order(skip, first[1] - 1, 150)
        await order(skip, first[1], 150)
        await order(skip, first[1], 190)
        await ear.say(QUIET)
        second = span((await units(talk, 1))[0])
        assert second == (150, 350), "once, and no more"
        await ear.say(QUIET[: UNIT // 4])
        await order(close, 540)  # of the unit that is over
        await ear.say(QUIET[: UNIT * 3 // 4])
        assert span((await units(talk, 1))[0]) == (350, 550)
        await ear.say(QUIET, QUIET[: UNIT // 2])
        spoken = (await units(talk, 1))[0]
        assert kinds(spoken)[0] == "SPEAK" and span(spoken) == (550, 750)
        await order(close, 1_050)  # not in a turn
        await ear.say(QUIET)
        assert span((await units(talk, 1))[0]) == (750, 950)


def span(unit: list[stage_pb2.FromStage]) -> tuple[int, int]:
    """Start and end of what a unit heard, as decision, note and receipt agree on."""
    decision, note = unit[0].chunk.payload.decision, unit[-2].chunk.payload.unit_note
    assert (decision.t_ms, decision.decided_at_ms) == (note.start_ms, note.end_ms)
    assert unit[-1].unit_done.consumed_ms == note.end_ms - note.start_ms
    return note.start_ms, note.end_ms


async def test_a_cancel_ends_the_turn_and_the_next_unit_listens() -> None:
    async with serving(*duplex_engines(unit_ms=UNIT_MS)) as (client, _):
        talk = client.converse("s1", "thinker")
        await talk.open('{"script": "sssss"}', input_format=PCM_24K)
        ear = Ear(talk)
        await ear.say(QUIET, QUIET[:500])
        await units(talk, 1)
        await talk.send(cancel=stage_pb2.Cancel(cancelled_epoch=0, next_epoch=4))
        await talk.read("cancelled")
        await ear.say(QUIET, QUIET)
        second, third = await units(talk, 2)
        assert kinds(second) == ["LISTEN", "unit_note", "unit_done"] and kinds(third)[0] == "SPEAK"
        assert (third[0].chunk.label.epoch, third[0].chunk.label.response_id) == (4, "t2")


async def test_frames_are_counted_and_what_is_no_picture_is_refused_by_name() -> None:
    async with serving(*duplex_engines(unit_ms=UNIT_MS)) as (client, _):
        talk = client.converse("s1", "thinker")
        await talk.open('{"script": "e", "words": 1}', input_format=PCM_24K)
        for position, data in enumerate((b"\xff\xd8\xff", b"GIF89a", b"\x89PNG"), 1):
            image = stage_pb2.Image(media_type="image/png", data=data, t_ms=50)
            await talk.append(stage_pb2.Payload(image=image), Label(), edge="camera", lane=INPUT, position=position)
        refused = (await talk.read("chunk")).chunk
        assert refused.finish.error.param == "camera[2].data" and not refused.label.response_id
        await Ear(talk).say(QUIET, QUIET[:500])
        unit = (await units(talk, 1))[0]
        assert unit[1].chunk.payload.text.text == "2 seen. " + reply("s1/1/0", 1)[0]


async def test_a_thought_or_codes_of_another_unit_fail_their_turn() -> None:
    async with serving(*duplex_engines(unit_ms=UNIT_MS)) as (client, _):
        coder, sounder = client.converse("s1", "talker"), client.converse("s1", "vocoder")
        await coder.open()
        await sounder.open(output_format=PCM_24K)
        wrong = stage_pb2.Thought(token_ids=[1, 3], hidden=stage_pb2.Tensor(data=np.array([1, 3], "<f4").tobytes()))
        await coder.append(stage_pb2.Payload(thought=wrong), Label(0, 1, "t1"), edge="thinker", position=1)
        assert (await coder.read("chunk")).chunk.finish.reason == stage_pb2.Finish.REASON_FAILED
        skipped = stage_pb2.Payload(codes=stage_pb2.Codes(codes=[5, 6]))
        await sounder.append(skipped, Label(0, 1, "t1"), edge="talker", position=1)
        assert (await sounder.read("chunk")).chunk.finish.reason == stage_pb2.Finish.REASON_FAILED


async def test_a_model_may_have_another_name() -> None:
    async with serving(*duplex_engines(unit_ms=UNIT_MS, stages=("seer", "singer", "sounder"))) as (client, _):
        talk = client.converse("s1", "seer")
        await talk.open('{"script": "l"}', input_format=PCM_24K)
        await Ear(talk).say(QUIET, QUIET[:500])
        assert kinds((await units(talk, 1))[0]) == ["LISTEN", "unit_note", "unit_done"]


def logged(unit: list[stage_pb2.FromStage]) -> str:
    """The note of a unit as a core hands it back."""
    note = unit[-2].chunk.payload.unit_note
    return b2a_base64(msgspec.msgpack.encode((note.start_ms, note.end_ms, note.data)), newline=False).decode()


@pytest.mark.behaviour("X3")
async def test_from_its_notes_a_model_knows_what_it_said_and_goes_on_behind_them() -> None:
    async with serving(*duplex_engines(unit_ms=UNIT_MS)) as (client, _):
        first = client.converse("s1", "thinker")
        await first.open('{"script": "lssssss"}', input_format=PCM_24K)
        await Ear(first).say(*[QUIET] * 3, QUIET[:500])
        before = await units(first, 3)
        notes = [unit[-2].chunk for unit in before]
        assert [(chunk.payload.unit_note.start_ms, chunk.payload.unit_note.end_ms) for chunk in notes] == [(0, 200), (200, 400), (400, 600)]
        assert {(chunk.label.response_id, chunk.last) for chunk in notes} == {("", False)} and notes[2].label.turn == 1
        assert all(len(chunk.payload.unit_note.data) < 1024 for chunk in notes)
        again = client.converse("s2", "thinker")
        script = {"script": "lsssse", "recite": True, "previous": "Before.", "unit_log": [logged(unit) for unit in before]}
        await again.open(json.dumps(script), input_format=PCM_24K)
        await Ear(again).say(*[QUIET] * 6, QUIET[:500])
        after = await units(again, 3)
    assert [kinds(unit)[0] for unit in after] == ["LISTEN", "SPEAK", "SPEAK"], "the open turn is over, the next unit listens"
    assert [unit[0].chunk.payload.decision.t_ms for unit in after] == [600, 800, 1000], "nothing is made of what the log tells"
    assert [unit[-1].unit_done.unit for unit in after] == [0, 1, 2]
    words = " ".join("".join(reply(f"s2/1/{unit}", 3)) for unit in (0, 1))
    assert after[1][1].chunk.payload.text.text == f"Before. / {words} " + "".join(reply("s2/1/0", 3)) + " "
    assert msgspec.msgpack.decode(after[0][-2].chunk.payload.unit_note.data)[0] == 3, "its own numbers go on"


@pytest.mark.parametrize("text", ["no base64", "", b2a_base64(msgspec.msgpack.encode((0, 200, b"x"))).decode(), "kgEC"])
def test_a_log_that_is_not_of_this_model_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        ScriptedDuplex().validate({"unit_log": [text]})
    assert refused.value.param == "unit_log[0]"
