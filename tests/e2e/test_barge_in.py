"""Barge-in on the wire: silence at once, the interrupting words whole, a history of what was heard."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.conftest import Talk
from tests.support.checks import WORD_MS, check_begun, heard_text
from tests.support.house import House
from tests.support.listener import Event, Listener
from tests.support.speech import silence, tone

WORDS = 200
REPETITIONS = 25


async def _interrupt(listener: Listener, deltas: int, said_ms: int) -> tuple[str, int]:
    """Waits for so much sound of a reply and speaks into it. Returns the reply's id and the time at which the user spoke."""
    created = await listener.until("response.created")
    for _ in range(deltas):
        await listener.until("response.output_audio.delta")
    await listener.append(tone(300), piece_bytes=960)
    await listener.append(silence(600))
    response_id: str = created["response"]["id"]
    done = await listener.response_done(response_id)
    assert (done["status"], done["status_details"]["reason"]) == ("cancelled", "turn_detected")
    return response_id, said_ms


@pytest.mark.behaviour("F9", "O4", "U37", "U38", "X16")
async def test_not_a_byte_after_the_terminal_and_every_interrupting_word(house: House, talk: Talk) -> None:
    listener = await talk(house)
    await listener.configure(instructions=f"words={WORDS}", audio={"input": {"transcription": {"model": "any"}}})
    await listener.append(tone(300) + silence(600))
    said_ms, interrupted = 900, []
    for repetition in range(REPETITIONS):
        interrupted.append(await _interrupt(listener, 1 + repetition % 11, said_ms))
        said_ms += 900
    last = await listener.until("response.created")
    await listener.send("response.cancel")
    await listener.response_done(last["response"]["id"])
    for response_id, began_ms in interrupted:
        _check_silence_after(listener.events, response_id)
        check_begun(listener, response_id, WORDS)
        _check_words_kept(listener, response_id, began_ms)
    assert not listener.of("error")


def _check_silence_after(events: list[Event], response_id: str) -> None:
    ends = [i for i, e in enumerate(events) if e["type"] == "response.done" and e["response"]["id"] == response_id]
    assert len(ends) == 1
    assert not [e["type"] for e in events[ends[0] + 1 :] if e.get("response_id") == response_id]
    begin = next(i for i, e in enumerate(events) if e["type"] == "response.created" and e["response"]["id"] == response_id)
    cut = [e["type"] for e in events[begin : ends[0]]]
    # the user is announced before the terminal, and no sound follows that
    assert "response.output_audio.delta" not in cut[cut.index("input_audio_buffer.speech_started") :]


def _check_words_kept(listener: Listener, response_id: str, began_ms: int) -> None:
    events = listener.events
    end = next(i for i, e in enumerate(events) if e["type"] == "response.done" and e["response"]["id"] == response_id)
    started = next(e for e in reversed(events[:end]) if e["type"] == "input_audio_buffer.speech_started")
    assert began_ms <= started["audio_start_ms"] <= began_ms + 40
    item_id = started["item_id"]
    stopped = next(e for e in events if e["type"] == "input_audio_buffer.speech_stopped" and e["item_id"] == item_id)
    heard = next(
        e["transcript"] for e in events
        if e["type"] == "conversation.item.input_audio_transcription.completed" and e["item_id"] == item_id
    )  # fmt: skip
    span = stopped["audio_end_ms"] - started["audio_start_ms"]
    assert heard == f"heard {span} ms" and span >= 260


@pytest.mark.behaviour("P1", "U37")
async def test_history_is_what_was_heard(house: House, talk: Talk) -> None:
    listener = await talk(house)
    response = await listener.ask("hello words=60")
    await listener.configure(instructions="words=1")
    wanted_ms = 3_700
    while len(listener.audio(response["id"])) < wanted_ms * 48:
        await listener.until("response.output_audio.delta")
    await listener.append(tone(300) + silence(600))
    done = await listener.response_done(response["id"])
    said = done["output"][0]["content"][0]["transcript"]
    assert said == "".join(listener.transcript(response["id"]))
    sent_ms = check_begun(listener, response["id"], 60)
    item = await listener.item(done["output"][0]["id"])
    assert item["status"] == "incomplete"
    # at least 2.7 s have been heard, and never more than was sent
    kept = {heard_text(response["id"], 60, ms) for ms in (*range(wanted_ms - 1_000, sent_ms, 500), sent_ms)}
    assert item["content"][0]["transcript"] in kept and sent_ms < 60 * WORD_MS
    answered = await listener.until(lambda e: e["type"] == "response.done" and e["response"]["id"] != response["id"])
    assert answered["response"]["status"] == "completed"
    recited = await listener.reply("go on", output_modalities=["text"], instructions="recite")
    told = recited["output"][0]["content"][0]["text"]
    assert told.startswith(f'[["user","hello words=60"],["assistant","{item["content"][0]["transcript"]}"],["user","heard ')
    assert told.endswith(',["user","go on"]]')


@pytest.mark.behaviour("U39")
async def test_speech_after_the_reply_was_heard_changes_no_history(house: House, talk: Talk) -> None:
    listener = await talk(house)
    done = await listener.reply("words=1")
    before = await listener.item(done["output"][0]["id"])
    # the listener plays it to its end
    await asyncio.sleep(WORD_MS / 1000 + 0.1)
    await listener.append(tone(300) + silence(600))
    await listener.until("response.done")
    assert before == await listener.item(done["output"][0]["id"])
    assert before["content"][0]["transcript"] == listener.transcript(done["id"])


async def test_a_cancel_before_any_sound_leaves_the_user_and_no_answer(house: House, talk: Talk) -> None:
    listener = await talk(house)
    response = await listener.ask("first", instructions="words=10 words_per_s=0.2")
    await listener.send("response.cancel")
    done = await listener.response_done(response["id"])
    assert done["status"] == "cancelled"
    recited = await listener.reply("second", output_modalities=["text"], instructions="recite")
    assert recited["output"][0]["content"][0]["text"] == '[["user","first"],["user","second"]]'
