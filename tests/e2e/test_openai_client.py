"""The unmodified openai client, through every process: what its events are typed as, and in which order they come."""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from openai.types import realtime as rt

from stage_kit.scripted import ramp, reply
from tests.support.house import House
from tests.support.listener import Event
from tests.support.speech import question, silence, tone, ulaw, utterance

Typed = Any
TURN = (
    "input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped", "input_audio_buffer.committed",
    "conversation.item.added", "conversation.item.done",
)  # fmt: skip
SPOKEN_BEGIN = (
    "response.created", "response.output_item.added", "conversation.item.added", "response.content_part.added",
)  # fmt: skip
SPOKEN_END = (
    "response.output_audio.done", "response.output_audio_transcript.done", "response.content_part.done", "response.output_item.done",
    "conversation.item.done", "response.done", "rate_limits.updated",
)  # fmt: skip
TEXT_END = (
    "response.output_text.done", "response.content_part.done", "response.output_item.done", "conversation.item.done", "response.done",
    "rate_limits.updated",
)  # fmt: skip


class Caller:
    """A connection of the client and every event that it parsed."""

    def __init__(self, connection: AsyncRealtimeConnection) -> None:
        self.connection = connection
        self.events: list[Typed] = []
        self._at = 0

    async def until(self, wanted: str | Callable[[Typed], bool]) -> Typed:
        """The next event of that type or for which it is true."""
        test = wanted if callable(wanted) else lambda event: event.type == wanted
        async with asyncio.timeout(20):
            while True:
                while self._at < len(self.events):
                    event = self.events[self._at]
                    self._at += 1
                    if test(event):
                        return event
                self.events.append(await self.connection.recv())

    async def say(self, pcm: bytes) -> None:
        for start in range(0, len(pcm), 48_000):
            await self.connection.input_audio_buffer.append(audio=base64.b64encode(pcm[start : start + 48_000]).decode())

    async def update(self, **session: Any) -> Typed:
        await self.connection.session.update(session={"type": "realtime", **session})  # type: ignore[typeddict-item]
        return (await self.until("session.updated")).session

    async def item(self, item_id: str) -> Typed:
        await self.connection.conversation.item.retrieve(item_id=item_id)
        return (await self.until("conversation.item.retrieved")).item

    async def type_in(self, text: str) -> Typed:
        content = [{"type": "input_text", "text": text}]
        await self.connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})  # type: ignore[typeddict-item]
        return (await self.until("conversation.item.done")).item

    def sound(self, response_id: str) -> bytes:
        deltas = (e for e in self.events if e.type == "response.output_audio.delta" and e.response_id == response_id)
        return b"".join(base64.b64decode(e.delta) for e in deltas)

    def types(self, response_id: str) -> list[str]:
        """Types of the response's events in order, runs of one type as one."""
        mine = [e.type for e in self.events if _response_of(e) == response_id]
        return [name for name, _ in itertools.groupby(mine)]


def _response_of(event: Typed) -> str | None:
    response = getattr(event, "response", None)
    return response.id if response is not None else getattr(event, "response_id", None)


@asynccontextmanager
async def dial(house: House, *, strict: bool = True) -> AsyncIterator[Caller]:
    """`strict`: at the end every event must be what the client's types say. 16 kHz is ours, not theirs."""
    client = AsyncOpenAI(api_key="a key", websocket_base_url=house.websocket)
    async with client.realtime.connect(model="parley-embedded") as connection:
        caller = Caller(connection)
        await caller.until("session.created")
        yield caller
        if strict:
            _check_all(caller)


def _check_all(caller: Caller) -> None:
    """Every event was parsed into the client's own type, has an id of its own, and lacks nothing that its type demands."""
    union = rt.RealtimeServerEvent
    known = {model.model_fields["type"].annotation.__args__[0]: model for model in union.__args__[0].__args__}  # type: ignore[attr-defined]
    ids = [event.event_id for event in caller.events]
    assert len(set(ids)) == len(ids)
    for event in caller.events:
        model = known[event.type]
        assert type(event) is model
        model.model_validate(event.to_dict())


def _between(caller: Caller, first: str, last: Callable[[Typed], bool]) -> list[str]:
    """Types from the last `first` before `last` on, to `last`; runs as one, transcription left out: it may come at any time."""
    end = next(i for i, event in enumerate(caller.events) if last(event))
    start = max(i for i, event in enumerate(caller.events[:end]) if event.type == first)
    types = (e.type for e in caller.events[start : end + 1] if "input_audio_transcription" not in e.type)
    return [name for name, _ in itertools.groupby(types)]


async def _spoken_turn(caller: Caller, speech: bytes) -> Typed:
    """One turn by voice; checks the order and the joins of section 1.6."""
    await caller.say(speech)
    started = await caller.until("input_audio_buffer.speech_started")
    stopped = await caller.until("input_audio_buffer.speech_stopped")
    committed = await caller.until("input_audio_buffer.committed")
    added = await caller.until("conversation.item.added")
    assert started.item_id == stopped.item_id == committed.item_id == added.item.id
    assert 0 <= started.audio_start_ms < stopped.audio_end_ms
    created = await caller.until("response.created")
    assert created.response.status == "in_progress" and created.response.output == []
    done = await caller.until("response.done")
    await caller.until("rate_limits.updated")
    order = _between(caller, TURN[0], lambda e: e is done)
    assert tuple(order[: len(TURN)]) == TURN
    _check_spoken(caller, done.response)
    return done.response


def _check_spoken(caller: Caller, response: Typed) -> None:
    types = caller.types(response.id)
    begin = [name for name in SPOKEN_BEGIN if name.startswith("response")]
    end = [name for name in SPOKEN_END if name.startswith("response")]
    assert types[: len(begin)] == begin and types[-len(end) :] == end
    assert set(types[len(begin) : -len(end)]) == {"response.output_audio_transcript.delta", "response.output_audio.delta"}
    assert response.status == "completed" and response.status_details is None
    (item,) = response.output
    (content,) = item.content
    deltas = "".join(e.delta for e in caller.events if e.type == "response.output_audio_transcript.delta" and e.response_id == response.id)
    done = next(e for e in caller.events if e.type == "response.output_audio_transcript.done" and e.response_id == response.id)
    assert deltas == done.transcript == content.transcript
    assert content.type == "output_audio" and item.status == "completed"
    assert response.usage is not None and response.usage.output_tokens > 0
    assert deltas == "".join(reply(response.id, len(deltas.split())))


def _check_samples(caller: Caller, session_id: str, response_id: str) -> None:
    heard = np.frombuffer(caller.sound(response_id), "<i2")
    assert len(heard) > 0 and np.array_equal(heard, ramp(session_id, 0, len(heard)))


@pytest.mark.behaviour("O1", "W11")
@pytest.mark.parametrize("mode", ["server_vad", "semantic_vad"])
async def test_a_spoken_turn(house: House, mode: str) -> None:
    async with dial(house) as caller:
        created = caller.events[0]
        session = await caller.update(
            audio={"input": {"turn_detection": {"type": mode}, "transcription": {"model": "any"}}}, instructions="words=3"
        )
        assert session.id == created.session.id and session.audio.input.turn_detection.type == mode
        assert session.audio.input.turn_detection.interrupt_response is True
        response = await _spoken_turn(caller, question() + silence(700))
        _check_samples(caller, session.id, response.id)
        heard = next(e for e in caller.events if e.type == "conversation.item.input_audio_transcription.completed")
        assert heard.transcript.startswith("heard ") and heard.usage.type == "duration"
        again = await _spoken_turn(caller, utterance())
        assert again.id != response.id
        _check_samples(caller, session.id, again.id)


@pytest.mark.behaviour("W12")
async def test_typed_turns_in_sound_and_in_text(house: House) -> None:
    async with dial(house) as caller:
        session_id = caller.events[0].session.id
        item = await caller.type_in("words=2")
        assert item.role == "user" and item.status == "completed" and item.content[0].text == "words=2"
        await caller.connection.response.create(response={"metadata": {"client_event_id": "mine"}})
        created = await caller.until("response.created")
        assert created.response.metadata == {"client_event_id": "mine"}
        done = await caller.until("response.done")
        await caller.until("rate_limits.updated")
        _check_spoken(caller, done.response)
        _check_samples(caller, session_id, done.response.id)
        await caller.connection.response.create(response={"output_modalities": ["text"]})
        done = await caller.until("response.done")
        await caller.until("rate_limits.updated")
        order = _between(caller, "response.created", lambda e: e is caller.events[-1])
        assert tuple(order[-len(TEXT_END) :]) == TEXT_END
        assert not any("audio" in name for name in caller.types(done.response.id))
        (content,) = done.response.output[0].content
        assert content.type == "output_text" and content.text == "".join(reply(done.response.id, 2))


@pytest.mark.behaviour("T2")
async def test_push_to_talk(house: House) -> None:
    async with dial(house) as caller:
        session = await caller.update(audio={"input": {"turn_detection": None}}, instructions="words=1")
        assert session.audio.input.turn_detection is None
        await caller.connection.input_audio_buffer.commit(event_id="too early")
        refused = await caller.until("error")
        assert (refused.error.code, refused.error.event_id) == ("input_audio_buffer_commit_empty", "too early")
        await caller.say(tone(300) + silence(900))
        await caller.connection.input_audio_buffer.commit()
        committed = await caller.until("input_audio_buffer.committed")
        assert committed.previous_item_id is None
        done = await caller.until("conversation.item.done")
        assert done.item.id == committed.item_id
        await caller.connection.response.create()
        answered = await caller.until("response.done")
        await caller.until("rate_limits.updated")
        _check_spoken(caller, answered.response)
        assert (await caller.item(committed.item_id)).content[0].transcript == "heard 1200 ms"
        types = {event.type for event in caller.events}
        assert "input_audio_buffer.speech_started" not in types


@pytest.mark.behaviour("U37", "U38", "T3")
async def test_a_barge_in(house: House) -> None:
    async with dial(house) as caller:
        await caller.update(instructions="words=40")
        await caller.say(utterance())
        created = await caller.until("response.created")
        await caller.until("response.output_audio.delta")
        await caller.say(utterance(500))
        started = await caller.until("input_audio_buffer.speech_started")
        done = await caller.until("response.done")
        assert done.response.id == created.response.id and done.response.status == "cancelled"
        assert (done.response.status_details.type, done.response.status_details.reason) == ("cancelled", "turn_detected")
        await caller.until(lambda e: e.type == "conversation.item.added" and e.item.id == started.item_id)
        await caller.until("response.created")
        await caller.connection.response.cancel()
        done = await caller.until("response.done")
        assert done.response.status_details.reason == "client_cancelled"
        terminals = [e.response.id for e in caller.events if e.type == "response.done"]
        assert len(terminals) == len(set(terminals)) == 2


@pytest.mark.behaviour("O3")
async def test_cancel(house: House) -> None:
    async with dial(house) as caller:
        await caller.type_in("words=60")
        await caller.connection.response.create()
        created = await caller.until("response.created")
        await caller.until("response.output_audio.delta")
        await caller.connection.response.cancel(response_id=created.response.id)
        done = await caller.until("response.done")
        await caller.until("rate_limits.updated")
        assert done.response.status == "cancelled" and done.response.status_details.reason == "client_cancelled"
        types = caller.types(created.response.id)
        assert types[-5:] == [name for name in SPOKEN_END if name.startswith("response")]
        await caller.connection.response.create(response={"instructions": "words=1"})
        again = await caller.until("response.done")
        assert again.response.id != created.response.id and again.response.status == "completed"


@pytest.mark.behaviour("U40", "P1")
async def test_items_are_created_retrieved_cut_and_deleted(house: House) -> None:
    async with dial(house) as caller:
        items = caller.connection.conversation.item
        first = await caller.type_in("words=12")
        note = [{"type": "input_text", "text": "a note"}]
        await items.create(item={"id": "note", "type": "message", "role": "system", "content": note}, previous_item_id="root")  # type: ignore[typeddict-item]
        added = await caller.until("conversation.item.added")
        assert added.item.id == "note" and added.previous_item_id is None
        await caller.until("conversation.item.done")
        assert (await caller.item("note")).content[0].text == "a note"
        await caller.connection.response.create(response={"instructions": "words=12"})
        done = await caller.until("response.done")
        (spoken,) = done.response.output
        await items.truncate(item_id=spoken.id, content_index=0, audio_end_ms=2100)
        cut = await caller.until("conversation.item.truncated")
        assert (cut.item_id, cut.content_index, cut.audio_end_ms) == (spoken.id, 0, 2100)
        kept = await caller.item(spoken.id)
        assert kept.content[0].transcript == "".join(reply(done.response.id, 12)[:6]).rstrip()
        await items.delete(item_id="note")
        assert (await caller.until("conversation.item.deleted")).item_id == "note"
        await items.retrieve(item_id="note", event_id="gone")
        refused = await caller.until("error")
        assert (refused.error.code, refused.error.event_id) == ("item_not_found", "gone")
        await caller.connection.response.create(response={"output_modalities": ["text"], "instructions": "recite"})
        recited = await caller.until("response.done")
        assert recited.response.output[0].content[0].text == (
            f'[["user","{first.content[0].text}"],["assistant","{kept.content[0].transcript}"]]'
        )


@pytest.mark.behaviour("U41")
async def test_clear_forgets_what_was_said(house: House) -> None:
    async with dial(house) as caller:
        await caller.update(audio={"input": {"turn_detection": None}})
        await caller.say(tone(1000))
        await caller.connection.input_audio_buffer.clear()
        await caller.until("input_audio_buffer.cleared")
        await caller.connection.input_audio_buffer.commit(event_id="nothing")
        assert (await caller.until("error")).error.code == "input_audio_buffer_commit_empty"
        await caller.say(tone(300))
        await caller.connection.input_audio_buffer.commit()
        item_id = (await caller.until("input_audio_buffer.committed")).item_id
        await caller.connection.response.create(response={"instructions": "words=1"})
        await caller.until("response.done")
        assert (await caller.item(item_id)).content[0].transcript == "heard 300 ms"


@pytest.mark.parametrize("rate", [16_000, 8_000])
async def test_other_formats_in_and_out_in_mid_session(house: House, rate: int) -> None:
    wire = {"type": "audio/pcm", "rate": 16_000} if rate == 16_000 else {"type": "audio/pcmu"}
    async with dial(house, strict=rate != 16_000) as caller:
        await caller.update(instructions="words=3")
        plain = await _spoken_turn(caller, utterance())
        seconds = len(caller.sound(plain.id)) / 48_000
        session = await caller.update(audio={"input": {"format": wire}, "output": {"format": wire}})
        now = session.to_dict()["audio"]
        assert now["input"]["format"] == now["output"]["format"] == {"type": wire["type"], "rate": rate}
        speech = utterance(600, rate)
        response = await _spoken_turn(caller, speech if rate == 16_000 else ulaw(speech))
        bytes_a_second = rate * (2 if rate == 16_000 else 1)
        assert len(caller.sound(response.id)) / bytes_a_second == pytest.approx(seconds, abs=0.002)
        item_id = next(e.item_id for e in reversed(caller.events) if e.type == "input_audio_buffer.committed")
        assert int((await caller.item(item_id)).content[0].transcript.split()[1]) == pytest.approx(600, abs=60)


async def test_an_update_changes_what_it_names_and_nothing_else(house: House) -> None:
    async with dial(house) as caller:
        await caller.update(instructions="words=2", audio={"input": {"turn_detection": {"type": "server_vad", "silence_duration_ms": 400}}})
        session = await caller.update(tools=[{"type": "function", "name": "look", "parameters": {"type": "object"}}], tool_choice="none")
        assert session.instructions == "words=2" and session.audio.input.turn_detection.silence_duration_ms == 400
        assert session.tools[0].name == "look" and session.tool_choice == "none"
        assert (await caller.update(instructions="", tools=[])).to_dict()["instructions"] == ""
        await caller.connection.session.update(session={"type": "realtime", "model": "another"}, event_id="foreign")
        refused = await caller.until("error")
        assert (refused.error.code, refused.error.param, refused.error.event_id) == (
            "model_update_unsupported", "session.model", "foreign",
        )  # fmt: skip


async def test_the_client_dials_without_compression_and_is_told_of_its_session_unasked(house: House) -> None:
    async with dial(house) as caller:
        session: Event = caller.events[0].session.to_dict()
        assert session["audio"]["input"]["format"] == {"type": "audio/pcm", "rate": 24_000}
        assert session["model"] == "parley-embedded" and session["object"] == "realtime.session"
