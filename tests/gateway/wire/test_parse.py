"""Client events of the GA dialect become commands."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from gateway.conversation import commands
from gateway.conversation.config import AudioFormat, ResponseOptions, SemanticVad, ServerVad, SessionPatch, Tool, Transcription
from gateway.conversation.items import Item, Part
from gateway.wire import WireLimits, openai_ga

LIMITS = WireLimits()
FIRST_FRAMES: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[1] / "fixtures" / "client_first_frames.json").read_text("utf-8")
)


def parse(event: dict[str, Any], limits: WireLimits = LIMITS) -> Any:
    return openai_ga.parse(json.dumps(event), limits)


def update(**session: Any) -> SessionPatch:
    command = parse({"type": "session.update", "session": {"type": "realtime"} | session})
    assert isinstance(command, commands.SessionUpdate)
    return command.patch


def create(item: dict[str, Any]) -> Item:
    command = parse({"type": "conversation.item.create", "item": item})
    assert isinstance(command, commands.ItemCreate)
    return command.item


def respond(**response: Any) -> ResponseOptions:
    command = parse({"type": "response.create", "response": response})
    assert isinstance(command, commands.ResponseCreate)
    return command.options


@pytest.mark.parametrize(
    ("event", "command"),
    [
        ({"type": "input_audio_buffer.commit"}, commands.InputCommit(event_id="e")),
        ({"type": "input_audio_buffer.clear"}, commands.InputClear(event_id="e")),
        ({"type": "output_audio_buffer.clear"}, commands.OutputClear(event_id="e")),
        ({"type": "conversation.item.retrieve", "item_id": "i"}, commands.ItemRetrieve(item_id="i", event_id="e")),
        ({"type": "conversation.item.delete", "item_id": "i"}, commands.ItemDelete(item_id="i", event_id="e")),
        (
            {"type": "conversation.item.truncate", "item_id": "i", "content_index": 0, "audio_end_ms": 1500},
            commands.ItemTruncate(item_id="i", content_index=0, audio_end_ms=1500, event_id="e"),
        ),
        ({"type": "response.create"}, commands.ResponseCreate(event_id="e")),
        ({"type": "response.create", "response": None}, commands.ResponseCreate(event_id="e")),
        ({"type": "response.cancel"}, commands.ResponseCancel(event_id="e")),
        ({"type": "response.cancel", "response_id": "r"}, commands.ResponseCancel(response_id="r", event_id="e")),
        ({"type": "session.update", "session": {"type": "realtime"}}, commands.SessionUpdate(patch=SessionPatch(), event_id="e")),
    ],
)
def test_plain_events(event: dict[str, Any], command: commands.ClientCommand) -> None:
    assert parse(event | {"event_id": "e"}) == command


def test_append_decodes_audio_and_may_split_a_sample() -> None:
    command = parse({"type": "input_audio_buffer.append", "audio": base64.b64encode(b"\x01\x02\x03").decode()})
    assert command == commands.InputAppend(audio=b"\x01\x02\x03")


def test_unknown_fields_are_tolerated() -> None:
    assert parse({"type": "input_audio_buffer.commit", "extra": {"x": [1]}, "event_id": None}) == commands.InputCommit()


@pytest.mark.parametrize("client", sorted(FIRST_FRAMES))
def test_first_frames_of_known_clients(client: str) -> None:
    for event in FIRST_FRAMES[client]:
        assert parse(event).event_id == event.get("event_id")


def test_an_update_changes_only_what_it_names() -> None:
    patch = update(instructions="", tools=[], model=None)
    assert patch == SessionPatch(instructions="", tools=())


def test_null_clears_where_the_contract_says_so() -> None:
    cleared = update(audio={"input": {"turn_detection": None, "transcription": None, "noise_reduction": None}}, tracing=None, prompt=None)
    assert cleared == SessionPatch(turn_detection=None, transcription=None, noise_reduction=None, extras={"tracing": None, "prompt": None})
    assert update(audio={"input": {}}).turn_detection is UNSET


def test_every_session_field() -> None:
    patch = update(
        model="m",
        instructions="i",
        output_modalities=["text"],
        audio={
            "input": {
                "format": {"type": "audio/pcmu"},
                "noise_reduction": {"type": "near_field", "strength": 0.5},
                "transcription": {"model": "whisper-1", "language": "en", "prompt": "names", "delay": "low"},
                "turn_detection": {"type": "server_vad", "threshold": 0, "silence_duration_ms": 700, "interrupt_response": False},
            },
            "output": {"format": {"type": "audio/pcma", "rate": 8000}, "voice": {"id": "v1"}, "speed": 1},
        },
        tools=[{"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}}],
        tool_choice={"type": "function", "name": "f"},
        max_output_tokens=64,
        include=["item.input_audio_transcription.logprobs"],
        parallel_tool_calls=False,
        truncation={"type": "retention_ratio", "retention_ratio": 0.5},
        reasoning={"effort": "low"},
    )
    assert patch == SessionPatch(
        model="m",
        instructions="i",
        output_modalities=("text",),
        input_format=AudioFormat("pcmu", 8000),
        output_format=AudioFormat("pcma", 8000),
        turn_detection=ServerVad(threshold=0.0, silence_duration_ms=700, interrupt_response=False),
        transcription=Transcription("whisper-1", "en", "names"),
        noise_reduction="near_field",
        voice="v1",
        speed=1.0,
        tools=(Tool("f", "d", {"type": "object"}),),
        tool_choice="f",
        max_output_tokens=64,
        include=("item.input_audio_transcription.logprobs",),
        extras={
            "parallel_tool_calls": False,
            "truncation": {"type": "retention_ratio", "retention_ratio": 0.5},
            "reasoning": {"effort": "low"},
        },
    )


def test_semantic_vad_and_defaults() -> None:
    assert update(audio={"input": {"turn_detection": {"type": "semantic_vad", "eagerness": "low"}}}).turn_detection == SemanticVad("low")
    assert update(audio={"input": {"turn_detection": {"type": "server_vad"}}}).turn_detection == ServerVad()


def test_pcm_at_16_khz_is_an_extension() -> None:
    assert update(audio={"input": {"format": {"type": "audio/pcm", "rate": 16000}}}).input_format == AudioFormat("pcm", 16_000)


def test_audio_with_text_means_audio() -> None:
    assert update(output_modalities=["text", "audio"]).output_modalities == ("audio",)


def test_inf_unbounds_the_session_and_is_the_greatest_bound_of_a_response() -> None:
    assert update(max_output_tokens="inf").max_output_tokens is None
    assert respond(max_output_tokens="inf").max_output_tokens == LIMITS.max_output_tokens


def test_message_items() -> None:
    user = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_audio", "transcript": "b"}]}
    assert create(user) == Item("", role="user", content=(Part("input_text", text="a"), Part("input_audio", transcript="b")))
    system = {"id": "s", "type": "message", "role": "system", "content": [{"type": "input_text", "text": "x"}], "object": "realtime.item"}
    assert create(system) == Item("s", role="system", content=(Part("input_text", text="x"),))
    said = {"type": "message", "role": "assistant", "status": "in_progress", "content": [{"type": "output_text", "text": "y"}]}
    assert create(said) == Item("", role="assistant", content=(Part("output_text", text="y"),))


def test_function_items() -> None:
    call = {"type": "function_call", "name": "f", "call_id": "c", "arguments": "{}"}
    assert create(call) == Item("", "function_call", call_id="c", name="f", arguments="{}")
    answer = {"type": "function_call_output", "call_id": "c", "output": "4"}
    assert create(answer) == Item("", "function_call_output", call_id="c", output="4")


def test_previous_item_id_root_reaches_the_core() -> None:
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]}
    assert parse({"type": "conversation.item.create", "item": item, "previous_item_id": "root"}).previous_item_id == "root"


def test_response_options() -> None:
    options = respond(
        instructions="i",
        output_modalities=["text"],
        audio={"output": {"voice": "v"}},
        conversation="none",
        input=[{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]}],
        max_output_tokens=5,
        metadata={"client_event_id": "x"},
        tools=[],
        tool_choice="none",
        parallel_tool_calls=True,
        reasoning={"effort": "minimal"},
    )
    assert options == ResponseOptions(
        instructions="i",
        output_modalities=("text",),
        voice="v",
        max_output_tokens=5,
        tools=(),
        tool_choice="none",
        metadata={"client_event_id": "x"},
        out_of_band=True,
        input=(Item("", role="user", content=(Part("input_text", text="q"),)),),
    )
