"""Recorded speech in real time through every process, with the unmodified openai client: spoken answers of the real models."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from tests.embedded.caller import Caller, Event, call
from tests.embedded.checks import character_error_rate, check_reply, check_turn, recognize, sentences, word_error_rate
from tests.embedded.house import EmbeddedHouse
from tests.embedded.recordings import RATE, TEXTS, pcm, samples, to_pcm, voiced_ms, words
from tests.support.speech import silence
from thinker_svc.embedded.moonshine import Moonshine

pytestmark = [pytest.mark.models, pytest.mark.timeout(180)]

LEAD_MS = 400
QUESTION_WER = 0.25
MAX_PAUSE_MS = 2000
"""Longest pause of the default eagerness."""
SLACK_WORDS = 3
"""What is on its way to the ear, and what the recognizer makes of a cut word."""
CUT_CER = 0.4
"""The recognizer mishears more of what is cut off; another beginning is far above this."""
Record = Callable[[str, object], None]


async def _ask(caller: Caller, name: str) -> tuple[Event, int]:
    """Speaks a recording and waits for the response to be created. Returns it, and the position at which the voice ended."""
    start_ms = caller.microphone.say(silence(LEAD_MS) + pcm(name))
    response = (await caller.until("response.created")).response
    return response, start_ms + LEAD_MS + voiced_ms(samples(name))[1]


async def _turn(caller: Caller, name: str, recognizer: Moonshine) -> tuple[str, float]:
    """One whole spoken turn, checked. Returns the reply's text, and the seconds from the end of the voice to the first sound."""
    asked, voice_end_ms = await _ask(caller, name)
    done = await caller.done(asked.id)
    item_id = check_turn(caller, caller.of("input_audio_buffer.speech_started")[-1])
    assert word_error_rate(TEXTS[name], caller.heard(item_id)) <= QUESTION_WER
    text = check_reply(caller, done, recognizer)
    return text, caller.when(caller.deltas(asked.id)[0]) - caller.microphone.at(voice_end_ms)


@pytest.mark.behaviour("O1", "W11")
@pytest.mark.parametrize("mode", ["server_vad", "semantic_vad"])
async def test_a_spoken_question_gets_a_spoken_answer(
    embedded_house: EmbeddedHouse, recognizer: Moonshine, mode: str, record_property: Record
) -> None:
    async with call(embedded_house, {"type": mode}) as caller:
        text, latency_s = await _turn(caller, "synth_q_capital_france", recognizer)
    assert "paris" in words(text)
    record_property("first_sound_ms", round(latency_s * 1000))


@pytest.mark.behaviour("U37", "U38", "X16")
async def test_an_interruption_by_voice(embedded_house: EmbeddedHouse, recognizer: Moonshine, record_property: Record) -> None:
    async with call(embedded_house, {"type": "server_vad"}) as caller:
        asked, _ = await _ask(caller, "synth_q_sky_blue")
        # sound comes at most 1 s ahead of real time, so that 5 s of these have been heard
        while len(caller.sound(asked.id)) < 6 * RATE * 2:
            await caller.until("response.output_audio.delta")
        start_ms = caller.microphone.say(pcm("synth_stop_interrupt"))
        started = await caller.until("input_audio_buffer.speech_started")
        cut = await caller.done(asked.id)
        assert (cut.status, cut.status_details.type, cut.status_details.reason) == ("cancelled", "cancelled", "turn_detected")
        kept = (await caller.item(cut.output[0].id)).content[0].transcript
        answer = await caller.until(lambda event: event.type == "response.created" and event.response.id != asked.id)
        check_reply(caller, await caller.done(answer.response.id), recognizer)
        _check_silent_after(caller, asked.id)
        _check_words_whole(caller, started, start_ms)
        assert _ended(caller, asked.id) < caller.when(_transcribed(caller, started.item_id))
        heard_s = caller.when(started) - caller.when(caller.deltas(asked.id)[0])
        _check_history(caller, asked.id, kept, recognize(recognizer, caller.sound(asked.id)[: int(heard_s * RATE) * 2]))
        onset_ms = start_ms + voiced_ms(samples("synth_stop_interrupt"))[0]
        record_property("voice_to_cancelled_ms", round((_ended(caller, asked.id) - caller.microphone.at(onset_ms)) * 1000))


def _ended(caller: Caller, response_id: str) -> float:
    (done,) = [event for event in caller.of("response.done") if event.response.id == response_id]
    return caller.when(done)


def _transcribed(caller: Caller, item_id: str) -> Event:
    completed = caller.of("conversation.item.input_audio_transcription.completed")
    return next(event for event in completed if event.item_id == item_id)


def _check_silent_after(caller: Caller, response_id: str) -> None:
    """The user is announced first, no sound follows that, one terminal, and nothing of the response after it."""
    mine = caller.of_response(response_id)
    assert [event.type for event in mine].count("response.done") == 1 and mine[-1].type == "response.done"
    begun = caller.events.index(mine[0])
    after = [event.type for event in caller.events[begun : caller.events.index(mine[-1])]]
    assert "response.output_audio.delta" not in after[after.index("input_audio_buffer.speech_started") :]


def _check_words_whole(caller: Caller, started: Event, start_ms: int) -> None:
    """The interrupting words were recognised as if nothing else had been going on."""
    item_id = check_turn(caller, started)
    onset_ms, _ = voiced_ms(samples("synth_stop_interrupt"))
    assert start_ms + onset_ms - 600 <= started.audio_start_ms <= start_ms + onset_ms
    heard = words(caller.heard(item_id)).split()
    assert {"wait", "stop"} <= set(heard)
    assert word_error_rate(TEXTS["synth_stop_interrupt"], " ".join(heard)) <= QUESTION_WER


def _check_history(caller: Caller, response_id: str, kept: str, heard: str) -> None:
    """What stays is the beginning that was heard, up to a sentence end, and no heard sentence is missing."""
    beginnings = sentences(caller.text(response_id))
    assert kept in beginnings
    following = next((text for text in beginnings if len(text) > len(kept)), kept)
    kept_words, heard_words, following_words = (len(words(text).split()) for text in (kept, heard, following))
    assert kept_words - SLACK_WORDS <= heard_words < following_words + SLACK_WORDS
    if kept:
        assert character_error_rate(kept, " ".join(heard.split()[:kept_words])) <= CUT_CER


async def test_two_conversations_at_once_never_mix(embedded_house: EmbeddedHouse, recognizer: Moonshine, record_property: Record) -> None:
    async with call(embedded_house, {"type": "server_vad"}) as one, call(embedded_house, {"type": "semantic_vad"}) as other:
        turns = await asyncio.gather(_turn(one, "synth_q_capital_france", recognizer), _turn(other, "goforward", recognizer))
        assert "paris" in words(turns[0][0]) and "paris" not in words(turns[1][0])
        assert len(one.of("response.created")) == len(other.of("response.created")) == 1
        assert not _ids(one) & _ids(other)
    record_property("first_sound_ms", [round(latency_s * 1000) for _, latency_s in turns])


def _ids(caller: Caller) -> set[str]:
    named = {event.item_id for event in caller.events if getattr(event, "item_id", None)}
    return named | {event.response.id for event in caller.of("response.created")} | {caller.events[0].session.id}


async def test_an_unfinished_sentence_is_waited_for(embedded_house: EmbeddedHouse, record_property: Record) -> None:
    """ "... because, um": semantic VAD gives the speaker the longest pause; nothing is answered before it is over."""
    async with call(embedded_house, {"type": "semantic_vad"}) as caller:
        created, voice_end_ms = await _ask(caller, "synth_incomplete_um_because")
        (stopped,) = caller.of("input_audio_buffer.speech_stopped")
        assert abs(stopped.audio_end_ms - voice_end_ms) < 400
        waited_until = caller.microphone.at(stopped.audio_end_ms + MAX_PAUSE_MS)
        assert caller.when(stopped) >= waited_until
        assert caller.when(caller.of("response.created")[0]) >= waited_until
        assert words(caller.heard(stopped.item_id)).startswith("i think we should go there because")
        await caller.connection.response.cancel()
        await caller.done(created.id)
        record_property("voice_to_stop_ms", round((caller.when(stopped) - caller.microphone.at(voice_end_ms)) * 1000))


def _cough() -> bytes:
    """Two bursts of noise, loud at once and gone after 0.2 s."""
    noise = np.random.default_rng(7).normal(0, 0.25, RATE // 5).astype(np.float32)
    burst = noise * np.exp(-np.arange(noise.size) / (0.05 * RATE)).astype(np.float32)
    return to_pcm(np.concatenate([burst, np.zeros(RATE // 10, np.float32), burst * 0.7]))


async def test_neither_a_cough_nor_silence_is_answered(embedded_house: EmbeddedHouse) -> None:
    """What is answered are the words that follow."""
    await asyncio.gather(*(_cough_and_speak(embedded_house, mode) for mode in ("server_vad", "semantic_vad")))


async def _cough_and_speak(house: EmbeddedHouse, mode: str) -> None:
    async with call(house, {"type": mode}) as caller:
        caller.microphone.say(silence(300) + _cough() + silence(1200))
        asked, voice_end_ms = await _ask(caller, "cards_001")
        assert caller.when(caller.of("response.created")[0]) > caller.microphone.at(voice_end_ms)
        heard = [words(event.transcript) for event in caller.of("conversation.item.input_audio_transcription.completed")]
        assert [text for text in heard if text] == ["ten of clubs"]
        await caller.connection.response.cancel()
        await caller.done(asked.id)
