"""Whole conversations with a native model, by wire events, through real processes."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from typing import Any

import pytest

from tests.failover.conftest import Dial
from tests.native_e2e.partner import (
    JPEG,
    RATE,
    SAMPLES_PER_UNIT,
    UNIT_MS,
    Partner,
    came,
    check_begun,
    check_turn,
    check_units,
    decisions,
    words,
)
from tests.support.house import House


@pytest.mark.behaviour("O1", "T4")
async def test_a_spoken_question_is_answered_by_a_turn_of_the_model(duplex: House, dial: Dial) -> None:
    line = await dial(duplex.realtime, extended=True)
    partner = Partner(line)
    async with partner.listening():
        await partner.ask()
        created = await line.until("response.created")
        done = await line.response_done(created["response"]["id"])
        await came(line, "input_audio_buffer.committed")
    check_turn(line, done, 1, 3)
    check_units(line)
    told = [decision for _, decision in decisions(line)]
    at = told.index("speak")
    assert told[at : at + 4] == ["speak", "speak", "speak", "turn_end"] and set(told[:at]) == {"listen"}
    speaking = [event for event in line.of("session.decision") if event["decision"] != "listen"]
    assert {event["response_id"] for event in speaking} == {done["id"]}
    assert all(event["end_ms"] - event["t_ms"] <= UNIT_MS for event in speaking)
    stopped = line.of("input_audio_buffer.speech_stopped")[0]
    item = await line.item(stopped["item_id"])
    assert item["role"] == "user" and item["content"] == [{"type": "input_audio", "transcript": None}]
    assert len(line.of("response.created")) == 1 and not line.of("error")
    line.check_numbers()


async def test_a_stock_client_hears_the_dialect_and_nothing_else(duplex: House, dial: Dial) -> None:
    line = await dial(duplex.realtime)
    partner = Partner(line)
    async with partner.listening():
        await partner.ask()
        done = await line.until("response.done")
    check_turn(line, done["response"], 1, 3)
    assert not line.of("session.decision") and line.numbers == sorted(set(line.numbers))
    at = [event["type"] for event in line.events].index("response.created")
    spoken = [event["type"] for event in line.events[at:] if event["type"].startswith("response.")]
    assert spoken[:3] == ["response.created", "response.output_item.added", "response.content_part.added"]
    assert spoken[-5:] == [
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.done",
    ]


@pytest.mark.behaviour("T3")
async def test_who_speaks_up_cuts_the_model_off(duplex: House, dial: Dial) -> None:
    line = await dial(duplex.realtime, extended=True)
    await line.configure(model_options={"turn_units": 100})
    partner = Partner(line)
    async with partner.listening():
        await partner.ask()
        created = (await line.until("response.created"))["response"]
        for _ in range(3):
            await line.until("response.output_audio.delta")
        await came(line, "input_audio_buffer.committed")
    await partner.say(100)
    started = await line.until("input_audio_buffer.speech_started")
    done = await line.response_done(created["id"])
    assert done["status"] == "cancelled" and done["status_details"]["reason"] == "turn_detected"
    sent_ms = check_begun(line, created["id"])
    item = await line.item(done["output"][0]["id"])
    kept = item["content"][0]["transcript"]
    assert item["status"] == "incomplete" and words(line.session_id, 1, 1 + sent_ms // UNIT_MS).startswith(kept)
    await line.configure(model_options={"turn_units": 2})
    async with partner.listening():
        await partner.say(400)
        again = (await line.until("response.created"))["response"]
        await line.response_done(again["id"])
    assert again["id"] != created["id"] and started["item_id"] in [e["item_id"] for e in line.of("input_audio_buffer.speech_stopped")]
    after = [e for e in line.of("response.output_audio.delta") if e["response_id"] == created["id"]]
    ended = [e["type"] for e in line.events].index("response.done")
    assert all(line.events.index(delta) < ended for delta in after), "nothing of it comes afterwards"
    check_units(line, untold=2)
    line.check_numbers()


@pytest.mark.parametrize("policy", ["model", "ignore"])
@pytest.mark.behaviour("T3")
async def test_a_client_may_leave_it_to_the_model(duplex: House, dial: Dial, policy: str) -> None:
    line = await dial(duplex.realtime, extended=True)
    session = await line.configure(overlap={"policy": policy}, model_options={"turn_units": 10})
    assert session["overlap"]["policy"] == policy
    partner = Partner(line)
    await partner.ask()
    await line.until("response.output_audio.delta")
    await partner.say(200)
    async with partner.listening():
        done = (await line.until("response.done"))["response"]
        stopped = await came(line, "input_audio_buffer.speech_stopped")
    check_turn(line, done, 1, 10)
    assert stopped["audio_end_ms"] == pytest.approx(400 if policy == "ignore" else 820, abs=40), "what was heard of the user"


async def test_the_client_cancels_and_the_model_listens(duplex: House, dial: Dial) -> None:
    line = await dial(duplex.realtime, extended=True)
    await line.configure(model_options={"turn_units": 100})
    partner = Partner(line)
    async with partner.listening():
        await partner.ask()
        created = (await line.until("response.created"))["response"]
        await line.until("response.output_audio.delta")
        await line.send("response.cancel")
        done = await line.response_done(created["id"])
        assert done["status_details"]["reason"] == "client_cancelled"
        check_begun(line, created["id"])
        assert (await line.until("session.decision"))["decision"] == "listen"
        await line.configure(model_options={"turn_units": 1})
        await partner.ask()
        again = (await line.until("response.created"))["response"]
        check_turn(line, await line.response_done(again["id"]), 2, 1)


@pytest.mark.behaviour("S1", "X10")
async def test_two_conversations_never_mix(duplex: House, dial: Dial) -> None:
    lines = [await dial(duplex.realtime, extended=True) for _ in range(3)]

    async def converse(line: Any, turns: int) -> None:
        await line.configure(model_options={"turn_units": turns + 2})
        partner = Partner(line)
        async with partner.listening():
            for turn in range(1, turns + 1):
                await partner.ask()
                created = (await line.until("response.created"))["response"]
                check_turn(line, await line.response_done(created["id"]), turn, turns + 2)

    await asyncio.gather(*(converse(line, number) for number, line in enumerate(lines, 1)))
    for line in lines:
        check_units(line)
        line.check_numbers()


@pytest.mark.behaviour("T5")
async def test_the_model_ends_its_turn_though_the_client_sends_nothing_more(duplex: House, dial: Dial) -> None:
    line = await dial(duplex.realtime, extended=True)
    await line.configure(model_options={"turn_units": 8})
    partner, started = Partner(line), time.monotonic()
    await partner.ask()
    await partner.say(20, loud=False)
    done = (await line.until("response.done"))["response"]
    check_turn(line, done, 1, 8)
    assert time.monotonic() - started > 7 * UNIT_MS / 1000 - 0.1, "a unit a period, not faster"
    silent = line.of("session.decision")[-3:]
    assert [event["end_ms"] for event in silent] == pytest.approx([partner.samples * 1000 / RATE] * 3, abs=20), "silence takes no time"
    check_units(line)


@pytest.mark.behaviour("W22")
async def test_frames_are_seen_in_their_unit_and_bad_ones_named(duplex: House, dial: Dial) -> None:
    line = await dial(duplex.realtime, extended=True)
    await line.configure(model_options={"script": "lle", "words": 1})
    partner = Partner(line)
    picture = base64.b64encode(JPEG).decode()
    await partner.say(2 * UNIT_MS + 40, loud=False)
    await partner.say(20, loud=False, video_frames=[picture, picture], max_slice_nums=2)
    content = [{"type": "input_image", "image_url": f"data:image/jpeg;base64,{picture}"}]
    await line.send("conversation.item.create", item={"type": "message", "role": "user", "content": content})
    await line.until("conversation.item.done")
    broken = base64.b64encode(JPEG + b"broken").decode()
    event_id = await line.send("input_audio_buffer.append", audio="", video_frames=[broken])
    refused = await line.error(event_id)
    assert (refused["code"], refused["param"]) == ("input_refused", "video_frames")
    over = await line.send("input_audio_buffer.append", audio="", video_frames=[picture])
    assert (await line.error(over))["code"] == "too_many_frames"
    gif = await line.send("input_audio_buffer.append", audio="", video_frames=[base64.b64encode(b"GIF89a").decode()])
    assert (await line.error(gif))["code"] == "invalid_image"
    await partner.say(UNIT_MS, loud=False)
    done = (await line.until("response.done"))["response"]
    assert done["output"][0]["content"][0]["transcript"].startswith("3 seen. ")


async def test_what_it_does_not_do_is_refused_and_the_conversation_goes_on(duplex: House, dial: Dial) -> None:
    line = await dial(duplex.realtime)
    asked = await line.send("response.create")
    assert (await line.error(asked))["code"] == "native_unsupported"
    text = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
    typed = await line.send("conversation.item.create", item=text)
    assert (await line.error(typed))["code"] == "native_unsupported"
    waits = {"type": "server_vad", "create_response": False}
    for session, param in (
        ({"tools": [{"type": "function", "name": "clock"}]}, "session.tools"),
        ({"model_options": {"colour": 1}}, "session.model_options"),
        ({"model_options": {"script": "x"}}, "session.model_options.script"),
        ({"audio": {"input": {"turn_detection": waits}}}, "session.audio.input.turn_detection.create_response"),
    ):
        refused = await line.send("session.update", session={"type": "realtime", **session})
        assert (await line.error(refused))["param"] == param
    partner = Partner(line)
    async with partner.listening():
        await partner.ask()
        check_turn(line, (await line.until("response.done"))["response"], 1, 3)
        late = await line.send("session.update", session={"type": "realtime", "instructions": "too late"})
        assert (await line.error(late))["code"] == "frozen_after_first_unit"


async def test_a_written_session_is_written(duplex: House, dial: Dial) -> None:
    line = await dial(duplex.realtime)
    await line.configure(output_modalities=["text"])
    partner = Partner(line)
    async with partner.listening():
        await partner.ask()
        done = (await line.until("response.done"))["response"]
    assert done["output"][0]["content"] == [{"type": "output_text", "text": words(line.session_id, 1, 3)}]
    assert not line.of("response.output_audio.delta")


async def test_what_is_offered_is_listed(duplex: House) -> None:
    status, _, body = duplex.get("/v1/realtime/capabilities")
    offered = json.loads(body)
    assert status == 200 and offered["interaction"] == "native" and offered["native_full_duplex"] is True
    assert offered["unit_ms"] == UNIT_MS and offered["input_modalities"] == ["audio", "image"]
    assert offered["model_options"] == ["recite", "rms", "script", "turn_units", "words"]
    assert offered["overlap_policies"] == ["interrupt", "ignore", "model"] and offered["supports_response_create"] is False
    assert offered["limits"]["max_unit_frames"] == 4 and offered["limits"]["max_image_bytes"] == 200 * 1024


async def test_sound_leaves_in_the_pace_in_which_it_is_heard(duplex: House, dial: Dial) -> None:
    line = await dial(duplex.realtime, extended=True)
    await line.configure(model_options={"script": "s" * 15 + "e"})
    partner, begun = Partner(line), time.monotonic()  # before any sound, so that a late reader never takes its pace for a higher one
    await partner.say(17 * UNIT_MS, loud=False)
    done = (await line.until("response.done"))["response"]
    check_turn(line, done, 1, 16)
    played_s = 16 * SAMPLES_PER_UNIT / RATE
    assert time.monotonic() - begun > played_s - 1.0, "at most the lead ahead"
