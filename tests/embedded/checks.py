"""What every spoken reply of the real models must be: in order, whole, and saying what its text says."""

from __future__ import annotations

import re

import jiwer
import numpy as np

from tests.embedded.caller import Caller, Event
from tests.embedded.recordings import MODEL_RATE, RATE, to_samples, words
from thinker_svc.embedded.moonshine import Moonshine

TURN = (
    "input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped", "input_audio_buffer.committed",
    "conversation.item.added", "conversation.item.done",
)  # fmt: skip
BEGIN = ("response.created", "response.output_item.added", "response.content_part.added")
END = (
    "response.output_audio.done", "response.output_audio_transcript.done", "response.content_part.done", "response.output_item.done",
    "response.done",
)  # fmt: skip
CHARS_PER_S = (10, 25)
LEAST_RMS = 0.01
REPLY_CER = 0.25
"""Of characters, not words: the recognizer hears "Francis" for "France is", and another text is far off by either."""
RECOGNIZER_S = 14


def recognize(recognizer: Moonshine, sound: bytes) -> str:
    """The words of PCM16 at 24 kHz, of its first seconds if it is long."""
    return words(recognizer.transcribe(to_samples(sound)[: RECOGNIZER_S * MODEL_RATE]).text)


def check_turn(caller: Caller, started: Event) -> str:
    """The user's turn that began so: its events in order, once each. Returns the item's id."""
    item_id: str = started.item_id
    mine = [event for event in caller.events if getattr(event, "item_id", None) == item_id or getattr(_item(event), "id", None) == item_id]
    assert tuple(event.type for event in mine if "transcription" not in event.type) == TURN
    assert [event.type for event in mine].count("conversation.item.input_audio_transcription.completed") == 1
    assert 0 <= started.audio_start_ms < mine[[event.type for event in mine].index(TURN[1])].audio_end_ms
    return item_id


def _item(event: Event) -> Event:
    return getattr(event, "item", None)


def check_reply(caller: Caller, response: Event, recognizer: Moonshine) -> str:
    """A completed spoken reply: its events in order, its joins, and sound that says the text. Returns the text."""
    types = caller.types(response.id)
    assert response.status == "completed", f"{response.status_details}; of the conversation: {caller.story()}"
    assert tuple(types[: len(BEGIN)]) == BEGIN and tuple(types[-len(END) :]) == END
    assert set(types[len(BEGIN) : -len(END)]) == {"response.output_audio_transcript.delta", "response.output_audio.delta"}
    (item,) = response.output
    (content,) = item.content
    text = caller.text(response.id)
    told = next(event for event in caller.of_response(response.id) if event.type == "response.output_audio_transcript.done")
    assert text == told.transcript == content.transcript and content.type == "output_audio"
    check_spoken(caller.sound(response.id), text, recognizer)
    return text


def check_spoken(sound: bytes, text: str, recognizer: Moonshine) -> None:
    samples = np.frombuffer(sound, "<i2").astype(np.float32) / 32768
    assert float(np.sqrt(np.mean(samples**2))) > LEAST_RMS
    least, most = CHARS_PER_S
    assert least <= len(text) / (len(samples) / RATE) <= most
    heard = recognize(recognizer, sound)
    assert character_error_rate(text, heard) <= REPLY_CER, f"{heard!r} is not {text!r}"


def word_error_rate(reference: str, heard: str) -> float:
    return float(jiwer.wer(words(reference), words(heard)))


def character_error_rate(reference: str, heard: str) -> float:
    return float(jiwer.cer(words(reference), words(heard)))


def sentences(text: str) -> list[str]:
    """The text's beginnings up to each sentence end, shortest first; the empty one before, the whole text last."""
    ends = [found.end() for found in re.finditer(r"[.!?]+(?=\s|$)", text)]
    return ["", *(text[:end] for end in ends if end < len(text)), text]
