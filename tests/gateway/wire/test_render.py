"""Every event is exact GA JSON: the SDK's own models in strict mode, and what the strictest clients want on top."""

from __future__ import annotations

import base64
import json
import typing
from typing import Any

import pydantic
import pytest
from openai.types.realtime import RealtimeServerEvent

from gateway.conversation import events
from gateway.conversation.config import AudioFormat, SemanticVad, ServerVad, SessionConfig, SessionPatch, Tool, Transcription
from gateway.conversation.errors import ERRORS
from gateway.conversation.items import Item, Part, Response, Usage
from gateway.wire import WireLimits, openai_ga
from gateway.wire.openai_ga import SessionView

USER = Item("item_1", role="user", content=(Part("input_audio", transcript=None, audio_ms=900),))
TYPED = Item("item_2", role="user", content=(Part("input_text", text="hé\u2028llo \U0001f600"), Part("input_audio", transcript="b")))
SYSTEM = Item("item_3", role="system", content=(Part("input_text", text="x"),))
SPOKEN = Item("item_4", role="assistant", content=(Part("output_audio", transcript="Hi."),))
WRITTEN = Item("item_5", role="assistant", status="incomplete", content=(Part("output_text", text="Hi"),))
EMPTY = Item("item_6", role="assistant", status="in_progress")
CALL = Item("item_7", "function_call", call_id="call_1", name="f", arguments='{"a":1}')
OUTPUT = Item("item_8", "function_call_output", call_id="call_1", output="4")
ITEMS = (USER, TYPED, SYSTEM, SPOKEN, WRITTEN, EMPTY, CALL, OUTPUT)

CONFIGS = (
    SessionConfig("parley"),
    SessionConfig(
        "parley",
        instructions="Be brief.",
        output_modalities=("text",),
        input_format=AudioFormat("pcmu", 8000),
        output_format=AudioFormat("pcma", 8000),
        turn_detection=SemanticVad("low", interrupt_response=False),
        transcription=Transcription("whisper-1", "en", "names"),
        noise_reduction="far_field",
        tools=(Tool("f", "d", {"type": "object", "properties": {}}),),
        tool_choice="f",
        max_output_tokens=50,
        include=("item.input_audio_transcription.logprobs",),
        extras={"tracing": "auto", "truncation": "disabled", "parallel_tool_calls": True, "reasoning": {"effort": "low"}},
    ),
    SessionConfig("parley", turn_detection=None, tool_choice="required", extras={"prompt": {"id": "p"}, "tracing": {"group_id": "g"}}),
    SessionConfig("parley", turn_detection=ServerVad(idle_timeout_ms=6000), transcription=Transcription()),
)
RESPONSES = (
    Response("resp_1", metadata={"client_event_id": "x"}, conversation_id="conv_1"),
    Response("resp_1", "completed", output=(SPOKEN, CALL), usage=Usage(10, 0, 5, 20), max_output_tokens=99),
    Response("resp_1", "cancelled", "turn_detected", output=(WRITTEN,), modalities=("text",)),
    Response("resp_1", "cancelled", "client_cancelled"),
    Response("resp_1", "incomplete", "max_output_tokens", usage=Usage()),
    Response("resp_1", "failed", error_code="stage_failed", error_message="The talker service failed for this response."),
)
AT = ("resp_1", "item_4", 0)
EVENTS: tuple[Any, ...] = (
    *(events.SessionCreated("sess_ab", config) for config in CONFIGS),
    *(events.SessionUpdated("sess_ab", config) for config in CONFIGS),
    *(events.Error(code, "m", "session.voice", "e1") for code in ERRORS),
    events.Error("invalid_json", "m"),
    events.SpeechStarted("item_1", 120),
    events.SpeechStopped("item_1", 1120),
    events.InputCommitted("item_1", None),
    events.InputCommitted("item_2", "item_1"),
    events.InputCleared(),
    events.IdleTimeout("item_1", 0, 6000),
    *(events.ItemAdded(item, None) for item in ITEMS),
    *(events.ItemDone(item, "item_0") for item in ITEMS),
    *(events.ItemRetrieved(item) for item in ITEMS),
    events.ItemDeleted("item_1"),
    events.ItemTruncated("item_4", 0, 0),
    events.TranscriptionDelta("item_1", "he"),
    events.TranscriptionCompleted("item_1", "", 900),
    events.TranscriptionFailed("item_1", "transcription_failed", "m"),
    *(events.ResponseCreated(response) for response in RESPONSES[:1]),
    *(events.ResponseDone(response) for response in RESPONSES[1:]),
    *(events.OutputItemAdded("resp_1", 0, item) for item in (EMPTY, CALL)),
    *(events.OutputItemDone("resp_1", 1, item) for item in (SPOKEN, WRITTEN, CALL)),
    events.ContentPartAdded(*AT, Part("output_audio")),
    events.ContentPartAdded(*AT, Part("output_text")),
    events.ContentPartDone(*AT, Part("output_audio", transcript="Hi.")),
    events.ContentPartDone(*AT, Part("output_text", text="Hi.")),
    events.AudioDelta(*AT, b"\x00\x01\x02\x03"),
    events.AudioDone(*AT),
    events.TranscriptDelta(*AT, "H"),
    events.TranscriptDone(*AT, "Hi."),
    events.TextDelta(*AT, "H"),
    events.TextDone(*AT, "Hi."),
    events.ArgumentsDelta(*AT, "call_1", "{"),
    events.ArgumentsDone(*AT, "call_1", "f", "{}"),
    events.RateLimits(),
    events.OutputCleared("resp_1"),
)

# What the service really sends, or we add, beyond the SDK's models.
BEYOND_THE_MODELS = {"session.id", "session.object", "session.expires_at", "format.rate"}
server_event: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(RealtimeServerEvent)


def render(event: Any, seq: int | None = 1) -> dict[str, Any]:
    made = json.loads(openai_ga.render(event, seq, SessionView("sess_ab", expires_at=1_900_000_000)))
    assert isinstance(made, dict)
    return made


def extras(model: Any, name: str = "") -> set[str]:
    """Every field that no model knows, as "parent.field"."""
    found: set[str] = set()
    if isinstance(model, pydantic.BaseModel):
        found |= {f"{name}.{field}" for field in model.model_extra or ()}
        for field in type(model).model_fields:
            found |= extras(getattr(model, field), field)
    elif isinstance(model, list):
        for one in model:
            found |= extras(one, name)
    return found


def test_every_event_of_the_domain_is_covered() -> None:
    assert {type(event) for event in EVENTS} == set(typing.get_args(events.Event)) - set(events.EXTENSION), "test_extension has those"


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_the_sdk_models_take_every_event_in_strict_mode(event: Any) -> None:
    text = openai_ga.render(event, 7, SessionView("sess_ab", expires_at=1_900_000_000))
    model = server_event.validate_json(text, strict=True)
    assert model.event_id == "event_ab_7"
    assert extras(model) <= BEYOND_THE_MODELS


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_no_name_of_the_beta_leaves(event: Any) -> None:
    kind = render(event)["type"]
    assert not kind.startswith(("response.audio", "response.text")) and kind != "conversation.item.created"


@pytest.mark.parametrize("config", CONFIGS)
def test_the_session_is_complete(config: SessionConfig) -> None:
    session = render(events.SessionUpdated("sess_ab", config))["session"]
    assert (session["type"], session["object"], session["id"]) == ("realtime", "realtime.session", "sess_ab")
    assert set(session) == {
        "type", "object", "id", "model", "expires_at", "output_modalities", "instructions", "tools", "tool_choice", "max_output_tokens",
        "truncation", "include", "audio", "tracing", "prompt", "reasoning", "parallel_tool_calls",
    }  # fmt: skip
    assert set(session["audio"]["input"]) == {"format", "transcription", "noise_reduction", "turn_detection"}
    assert set(session["audio"]["output"]) == {"format", "voice", "speed"}
    for edge in session["audio"].values():
        assert edge["format"]["type"] in ("audio/pcm", "audio/pcmu", "audio/pcma") and edge["format"]["rate"]


def test_turn_detection_says_literally_that_it_interrupts() -> None:
    session = render(events.SessionCreated("sess_ab", CONFIGS[0]))["session"]
    turn = session["audio"]["input"]["turn_detection"]
    assert turn["interrupt_response"] is True and turn["create_response"] is True
    assert turn == {
        "type": "server_vad",
        "threshold": 0.5,
        "prefix_padding_ms": 300,
        "silence_duration_ms": 500,
        "idle_timeout_ms": None,
        "create_response": True,
        "interrupt_response": True,
    }


def test_the_default_rate_is_the_only_one_that_strict_clients_take() -> None:
    session = render(events.SessionCreated("sess_ab", CONFIGS[0]))["session"]
    assert session["audio"]["input"]["format"] == {"type": "audio/pcm", "rate": 24000}
    assert session["audio"]["output"]["format"] == {"type": "audio/pcm", "rate": 24000}
    assert session["max_output_tokens"] == "inf"


def test_transcription_model_is_never_null() -> None:
    heard = render(events.SessionCreated("sess_ab", CONFIGS[3]))["session"]["audio"]["input"]["transcription"]
    assert heard["model"] == ""


@pytest.mark.parametrize(
    "patch",
    [
        {"format": {"type": "audio/pcm", "rate": 16000}},
        {"format": {"type": "audio/pcmu", "rate": 8000}},
        {"format": {"type": "audio/pcma", "rate": 8000}},
    ],
)
def test_each_accepted_format_is_echoed(patch: dict[str, Any]) -> None:
    update = {"type": "session.update", "session": {"type": "realtime", "audio": {"input": patch, "output": patch}}}
    command = openai_ga.parse(json.dumps(update), WireLimits())
    made: SessionPatch = command.patch  # type: ignore[attr-defined]
    config = SessionConfig("m", input_format=made.input_format, output_format=made.output_format)  # type: ignore[arg-type]
    audio = render(events.SessionUpdated("sess_ab", config))["session"]["audio"]
    assert audio["input"]["format"] == audio["output"]["format"] == patch["format"]


def test_the_first_item_says_null() -> None:
    for event in (events.ItemAdded(USER, None), events.ItemDone(USER, None), events.InputCommitted("item_1", None)):
        made = render(event)
        assert "previous_item_id" in made and made["previous_item_id"] is None


def test_items_carry_what_the_strictest_client_wants() -> None:
    made = {item.id: render(events.ItemAdded(item, None))["item"] for item in ITEMS}
    for item in made.values():
        assert item["object"] == "realtime.item" and item["status"] and item["id"]
    assert made["item_1"]["content"] == [{"type": "input_audio", "transcript": None}]
    assert made["item_4"]["content"] == [{"type": "output_audio", "transcript": "Hi."}]
    assert made["item_6"] | {"content": []} == made["item_6"]
    assert {"call_id", "name", "arguments"} <= set(made["item_7"])
    assert {"call_id", "output"} <= set(made["item_8"])


def test_content_parts_keep_the_short_type_names() -> None:
    assert render(events.ContentPartAdded(*AT, Part("output_audio")))["part"] == {"type": "audio", "transcript": ""}
    assert render(events.ContentPartDone(*AT, Part("output_text", text="Hi.")))["part"] == {"type": "text", "text": "Hi."}


def test_pieces_name_their_place() -> None:
    for kind in (events.AudioDelta, events.TranscriptDelta, events.TextDelta):
        made = render(kind(*AT, b"\x00\x00" if kind is events.AudioDelta else "x"))
        assert (made["response_id"], made["item_id"], made["output_index"], made["content_index"]) == ("resp_1", "item_4", 0, 0)
    assert base64.b64decode(render(events.AudioDelta(*AT, b"\x01\x02"))["delta"]) == b"\x01\x02"


def test_responses_always_carry_every_key() -> None:
    for response in RESPONSES:
        made = render(events.ResponseDone(response))["response"]
        assert set(made) == {
            "object", "id", "status", "status_details", "output", "conversation_id", "output_modalities", "max_output_tokens", "audio",
            "usage", "metadata",
        }  # fmt: skip
        assert made["metadata"] == response.metadata


def test_terminals_have_complete_usage_and_status_details() -> None:
    for response in RESPONSES[1:]:
        made = render(events.ResponseDone(response))["response"]
        usage = made["usage"]
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        assert {"text_tokens", "audio_tokens", "cached_tokens"} <= set(usage["input_token_details"])
        assert {"text_tokens", "audio_tokens"} == set(usage["output_token_details"])
        if response.status == "completed":
            assert made["status_details"] is None
        else:
            assert made["status_details"]["type"] == response.status
            assert made["status_details"]["reason"] == response.reason
    failed = render(events.ResponseDone(RESPONSES[-1]))["response"]["status_details"]["error"]
    assert failed == {"type": "server_error", "code": "stage_failed", "message": "The talker service failed for this response."}


def test_transcription_completed_has_duration_usage() -> None:
    made = render(events.TranscriptionCompleted("item_1", "hello", 900))
    assert made["usage"] == {"type": "duration", "seconds": 0.9} and made["content_index"] == 0


@pytest.mark.parametrize("code", sorted(ERRORS))
def test_errors_name_the_culprit(code: str) -> None:
    made = render(events.Error(code, "m", None, "e1"))["error"]
    assert made == {"type": ERRORS[code].type, "code": code, "message": "m", "param": None, "event_id": "e1"}


def test_event_ids_are_deterministic_and_the_second_counter_is_apart() -> None:
    session = SessionView("sess_ab")
    ids = [json.loads(openai_ga.render(events.InputCleared(), seq, session))["event_id"] for seq in (1, None, 2, None)]
    assert ids == ["event_ab_1", "event_ab_u1", "event_ab_2", "event_ab_u2"]
    assert openai_ga.render(events.InputCleared(), 1, SessionView("sess_ab")) == openai_ga.render(events.InputCleared(), 1, session)
