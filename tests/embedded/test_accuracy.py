"""All recordings through the whole input path: 24 kHz over the WebSocket, cut by the turn detector, against the recognizer alone."""

from __future__ import annotations

import base64
from collections.abc import Callable

import jiwer
import pytest

from tests.embedded.caller import Caller, call
from tests.embedded.house import EmbeddedHouse
from tests.embedded.recordings import MODEL_RATE, READ_BY_PEOPLE, TEXTS, available, pcm, samples, voiced_ms, words
from tests.support.speech import silence
from thinker_svc.embedded.moonshine import Moonshine

pytestmark = [pytest.mark.models, pytest.mark.timeout(180)]

MOST_WORSE = 0.03
LEAD_MS, TAIL_MS = 500, 900


async def _hear(caller: Caller, name: str, start_ms: int) -> str:
    """Sends one recording as fast as the path takes it; all that was recognised of it."""
    sound = silence(LEAD_MS) + pcm(name) + silence(TAIL_MS)
    seen = len(caller.of("conversation.item.input_audio_transcription.completed"))
    for start in range(0, len(sound), 9600):
        await caller.connection.input_audio_buffer.append(audio=base64.b64encode(sound[start : start + 9600]).decode())
    end_ms = start_ms + LEAD_MS + voiced_ms(samples(name))[1]
    last = await caller.until(lambda event: event.type == "input_audio_buffer.speech_stopped" and event.audio_end_ms > end_ms - 400)
    completed = "conversation.item.input_audio_transcription.completed"
    await caller.until(lambda event: event.type == completed and event.item_id == last.item_id)
    return " ".join(event.transcript for event in caller.of(completed)[seen:])


async def test_the_path_costs_few_words(
    embedded_house: EmbeddedHouse, recognizer: Moonshine, record_property: Callable[[str, object], None]
) -> None:
    names = [name for name in TEXTS if available(name)]
    alone = [words(recognizer.transcribe(samples(name, MODEL_RATE)).text) for name in names]
    heard, start_ms = [], 0
    async with call(embedded_house, {"type": "server_vad", "create_response": False}, microphone=False) as caller:
        for name in names:
            heard.append(words(await _hear(caller, name, start_ms)))
            start_ms += LEAD_MS + len(pcm(name)) // 48 + TAIL_MS
    references = [TEXTS[name] for name in names]
    path, bare = float(jiwer.wer(references, heard)), float(jiwer.wer(references, alone))
    record_property("wer_path", round(path, 4))
    record_property("wer_alone", round(bare, 4))
    assert READ_BY_PEOPLE.keys() & set(names)
    assert path <= bare + MOST_WORSE
