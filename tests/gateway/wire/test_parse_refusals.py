"""What the dialect refuses: always typed, with the param and the client's event_id, and never with the client's words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.conversation import commands
from gateway.conversation.errors import ERRORS, Refusal
from gateway.wire import WireLimits, WireRefusal, openai_ga

LIMITS = WireLimits()


def refused(frame: str | bytes | dict[str, Any], limits: WireLimits = LIMITS) -> WireRefusal:
    with pytest.raises(Refusal) as caught:
        openai_ga.parse(json.dumps(frame) if isinstance(frame, dict) else frame, limits)
    assert isinstance(caught.value, WireRefusal)
    assert caught.value.code in ERRORS
    return caught.value


def session(**fields: Any) -> dict[str, Any]:
    return {"type": "session.update", "event_id": "e1", "session": {"type": "realtime"} | fields}


def message(role: str, *content: dict[str, Any], **fields: Any) -> dict[str, Any]:
    item = {"type": "message", "role": role, "content": list(content)} | fields
    return {"type": "conversation.item.create", "event_id": "e1", "item": item}


def response(**fields: Any) -> dict[str, Any]:
    return {"type": "response.create", "event_id": "e1", "response": fields}


def heard(**fields: Any) -> dict[str, Any]:
    return session(audio={"input": fields})


VAD = "session.audio.input.turn_detection"


@pytest.mark.behaviour("W14")
@pytest.mark.parametrize(
    ("frame", "code", "param", "event_id"),
    [
        (b'{"type":"input_audio_buffer.commit","event_id":"e1"}', "binary_frame_unsupported", None, "e1"),
        (b"\xff\x00", "binary_frame_unsupported", None, None),
        ("", "invalid_json", None, None),
        ("nonsense", "invalid_json", None, None),
        ("[]", "invalid_json", None, None),
        ('"input_audio_buffer.commit"', "invalid_json", None, None),
        ('{"type":"input_audio_buffer.commit"} x', "invalid_json", None, None),
        ('{"type":"input_audio_buffer.commit","event_id":"\\ud800"}', "invalid_json", None, None),
        ('{"type":"input_audio_buffer.commit","event_id":"\ud800"}', "invalid_json", None, None),
        ('{"event_id":"e1"}', "missing_field", "type", "e1"),
        ('{"type":null,"event_id":"e1"}', "invalid_field", "type", "e1"),
        ('{"type":7,"event_id":"e1"}', "invalid_field", "type", "e1"),
        ('{"type":"","event_id":"e1"}', "unknown_event_type", "type", "e1"),
        ('{"type":"session.upgrade","event_id":"e1"}', "unknown_event_type", "type", "e1"),
        ('{"type":"input_audio_buffer.append","audio":"A","event_id":"e1"}', "invalid_audio", "audio", "e1"),
        ('{"type":"input_audio_buffer.append","audio":"AAAA\\n","event_id":"e1"}', "invalid_audio", "audio", "e1"),
        ('{"type":"input_audio_buffer.append","audio":"AA AA","event_id":"e1"}', "invalid_audio", "audio", "e1"),
        ('{"type":"input_audio_buffer.append","audio":"-_-_","event_id":"e1"}', "invalid_audio", "audio", "e1"),
        ('{"type":"input_audio_buffer.append","audio":"data:audio/wav;base64,AAAA"}', "invalid_audio", "audio", None),
        ('{"type":"input_audio_buffer.append","audio":"é===","event_id":"e1"}', "invalid_audio", "audio", "e1"),
        ('{"type":"input_audio_buffer.append","audio":"","event_id":"e1"}', "invalid_field", "audio", "e1"),
        ('{"type":"input_audio_buffer.append","audio":[1],"event_id":"e1"}', "invalid_field", "audio", "e1"),
        ('{"type":"input_audio_buffer.append","event_id":"e1"}', "missing_field", "audio", "e1"),
        ('{"type":"input_audio_buffer.commit","event_id":""}', "invalid_field", "event_id", None),
        ('{"type":"input_audio_buffer.commit","event_id":7}', "invalid_field", "event_id", None),
        ('{"type":"input_audio_buffer.commit","event_id":"%s"}' % ("x" * 513), "invalid_field", "event_id", None),
    ],
)
def test_malformed_frames(frame: str | bytes, code: str, param: str | None, event_id: str | None) -> None:
    refusal = refused(frame)
    assert (refusal.code, refusal.param, refusal.client_event_id) == (code, param, event_id)


@pytest.mark.parametrize(
    ("event", "code", "param"),
    [
        ({"type": "session.update"}, "missing_field", "session"),
        ({"type": "session.update", "session": {}}, "missing_field", "session.type"),
        ({"type": "session.update", "session": {"type": "live"}}, "invalid_field", "session.type"),
        (session(type="transcription"), "unsupported_value", "session.type"),
        (session(type="transcription", audio={"input": {"format": 1}}), "invalid_field", "session.audio.input.format"),
        (session(instructions=7), "invalid_field", "session.instructions"),
        (session(output_modalities=[]), "invalid_field", "session.output_modalities"),
        (session(output_modalities=["audio", "audio"]), "invalid_field", "session.output_modalities"),
        (session(output_modalities=["video"]), "invalid_field", "session.output_modalities[0]"),
        (session(max_output_tokens=0), "invalid_field", "session.max_output_tokens"),
        (session(max_output_tokens=True), "invalid_field", "session.max_output_tokens"),
        (session(max_output_tokens="many"), "invalid_field", "session.max_output_tokens"),
        (session(max_output_tokens=10**30), "limit_exceeded", "session.max_output_tokens"),
        (session(tool_choice="perhaps"), "invalid_field", "session.tool_choice"),
        (session(tool_choice={"type": "mcp", "server_label": "s"}), "unsupported_value", "session.tool_choice.type"),
        (session(tool_choice={"type": "function"}), "missing_field", "session.tool_choice.name"),
        (session(tool_choice={"type": "function", "name": "auto"}), "unsupported_value", "session.tool_choice.name"),
        (session(tools=[{"type": "mcp", "server_label": "s"}]), "unsupported_value", "session.tools[0].type"),
        (session(tools=[{"type": "function"}]), "missing_field", "session.tools[0].name"),
        (session(tools=[{"name": "a b"}]), "invalid_field", "session.tools[0].name"),
        (session(tools=[{"name": "a"}, {"name": "a"}]), "invalid_field", "session.tools[1].name"),
        (session(tools=[{"name": "a", "parameters": []}]), "invalid_field", "session.tools[0].parameters"),
        (session(tools=[{"name": "a", "parameters": {"n": 10**30}}]), "invalid_field", "session.tools[0].parameters"),
        (session(include=["everything"]), "invalid_field", "session.include[0]"),
        (session(tracing="yes"), "invalid_field", "session.tracing"),
        (session(truncation={"type": "retention_ratio"}), "missing_field", "session.truncation.retention_ratio"),
        (heard(format="pcm16"), "invalid_field", "session.audio.input.format"),
        (heard(format={"type": "audio/opus"}), "unsupported_value", "session.audio.input.format.type"),
        (heard(format={"type": "audio/pcm", "rate": 48000}), "unsupported_value", "session.audio.input.format.rate"),
        (heard(format={"type": "audio/pcmu", "rate": 24000}), "unsupported_value", "session.audio.input.format.rate"),
        (heard(noise_reduction={"type": "mid_field"}), "invalid_field", "session.audio.input.noise_reduction.type"),
        (heard(turn_detection={"threshold": 0.5}), "missing_field", f"{VAD}.type"),
        (heard(turn_detection={"type": "none"}), "invalid_field", f"{VAD}.type"),
        (heard(turn_detection={"type": "server_vad", "threshold": 1.01}), "invalid_field", f"{VAD}.threshold"),
        (heard(turn_detection={"type": "server_vad", "threshold": "0.5"}), "invalid_field", f"{VAD}.threshold"),
        (heard(turn_detection={"type": "server_vad", "prefix_padding_ms": -1}), "invalid_field", f"{VAD}.prefix_padding_ms"),
        (heard(turn_detection={"type": "server_vad", "silence_duration_ms": 10.5}), "invalid_field", f"{VAD}.silence_duration_ms"),
        (heard(turn_detection={"type": "server_vad", "silence_duration_ms": 2**70}), "invalid_field", f"{VAD}.silence_duration_ms"),
        (heard(turn_detection={"type": "server_vad", "create_response": 1}), "invalid_field", f"{VAD}.create_response"),
        (heard(turn_detection={"type": "semantic_vad", "eagerness": "max"}), "invalid_field", f"{VAD}.eagerness"),
        (session(audio={"output": {"speed": 2}}), "invalid_field", "session.audio.output.speed"),
        (session(audio={"output": {"voice": ""}}), "invalid_field", "session.audio.output.voice"),
        (message("user"), "invalid_item", "item.content"),
        (message("robot", {"type": "input_text", "text": "a"}), "invalid_field", "item.role"),
        (message("user", {"type": "input_text"}), "missing_field", "item.content[0].text"),
        (message("user", {"type": "input_text", "text": 1}), "invalid_field", "item.content[0].text"),
        (message("user", {"type": "output_text", "text": "a"}), "invalid_item", "item.content[0].type"),
        (message("user", {"type": "input_audio", "audio": "AAAA"}), "invalid_item", "item.content[0].transcript"),
        (message("user", {"type": "input_audio", "audio": "!", "transcript": "a"}), "invalid_audio", "item.content[0].audio"),
        (message("user", {"type": "input_image", "image_url": "data:"}), "invalid_image", "item.content[0].image_url"),
        (message("user", {"type": "input_image"}), "invalid_image", "item.content[0].image_url"),
        (message("assistant", {"type": "input_image", "image_url": "data:"}), "invalid_item", "item.content[0].type"),
        (message("system", {"type": "input_audio", "transcript": "a"}), "invalid_item", "item.content[0].type"),
        (message("assistant", {"type": "output_audio", "transcript": "a"}), "invalid_item", "item.content[0].type"),
        (message("assistant", {"type": "text", "text": "a"}), "beta_api_unsupported", "item.content[0].type"),
        (message("user", {"type": "input_text", "text": "a"}, id=""), "invalid_field", "item.id"),
        (message("user", {"type": "input_text", "text": "a"}, id="a b"), "invalid_field", "item.id"),
        (message("user", {"type": "input_text", "text": "a"}, id="x" * 65), "invalid_field", "item.id"),
        (message("user", {"type": "input_text", "text": "a"}, status="done"), "invalid_field", "item.status"),
        ({"type": "conversation.item.create", "event_id": "e1", "item": {"type": "mcp_call"}}, "invalid_field", "item.type"),
        ({"type": "conversation.item.create", "event_id": "e1", "item": {}}, "missing_field", "item.type"),
        (
            {"type": "conversation.item.create", "item": {"type": "function_call", "name": "f", "arguments": "{}"}},
            "missing_field",
            "item.call_id",
        ),
        ({"type": "conversation.item.create", "item": {"type": "function_call_output", "call_id": "c"}}, "missing_field", "item.output"),
        ({"type": "conversation.item.truncate", "item_id": "i", "content_index": 0}, "missing_field", "audio_end_ms"),
        ({"type": "conversation.item.truncate", "item_id": "i", "content_index": 0, "audio_end_ms": -1}, "invalid_field", "audio_end_ms"),
        ({"type": "conversation.item.delete", "item_id": None}, "invalid_field", "item_id"),
        ({"type": "response.cancel", "response_id": 5}, "invalid_field", "response_id"),
        (response(conversation="conv_1"), "unsupported_value", "response.conversation"),
        (response(audio={"output": {"format": {"type": "audio/pcm"}}}), "unsupported_value", "response.audio.output.format"),
        (response(audio={"output": {"speed": 1.1}}), "unsupported_value", "response.audio.output.speed"),
        (response(prompt={"id": "p"}), "unsupported_value", "response.prompt"),
        (response(metadata={"k": 1}), "invalid_field", "response.metadata[...]"),
        (response(metadata={str(i): "" for i in range(17)}), "invalid_field", "response.metadata"),
        (response(metadata={"k": "v" * 513}), "invalid_field", "response.metadata[...]"),
        (response(input=[{"type": "item_reference", "id": "i"}]), "invalid_field", "response.input[0].type"),
        (
            response(input=[{"type": "function_call_output", "id": "i", "call_id": "c", "output": ""}] * 2),
            "invalid_field",
            "response.input",
        ),
    ],
)
def test_bad_fields_name_their_param(event: dict[str, Any], code: str, param: str) -> None:
    refusal = refused(event)
    assert (refusal.code, refusal.param, refusal.client_event_id) == (code, param, event.get("event_id"))


@pytest.mark.parametrize(
    ("event", "param"),
    [
        ({"type": "session.update", "session": {"modalities": ["audio"], "voice": "alloy"}}, "session.modalities"),
        ({"type": "session.update", "session": {"input_audio_format": "pcm16"}}, "session.input_audio_format"),
        (session(turn_detection=None), "session.turn_detection"),
        (session(temperature=0.8), "session.temperature"),
        (response(modalities=["text"]), "response.modalities"),
        (response(max_response_output_tokens="inf"), "response.max_response_output_tokens"),
        ({"type": "transcription_session.update", "session": {}}, "type"),
    ],
)
def test_the_beta_shape_is_refused_by_name(event: dict[str, Any], param: str) -> None:
    refusal = refused(event)
    assert (refusal.code, refusal.param) == ("beta_api_unsupported", param)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "0x10", "01"])
def test_numbers_that_json_or_we_do_not_have(number: str) -> None:
    vad = (
        '{"type":"session.update","session":{"type":"realtime","audio":{"input":{"turn_detection":{"type":"server_vad","threshold":%s}}}}}'
    )
    assert refused(vad % number).code in ("invalid_json", "invalid_field")


@pytest.mark.parametrize(
    "where", ["{%s}", '{"type":"session.update","session":{"type":"realtime","tools":[{"name":"a","parameters":{%s}}]}}']
)
def test_a_nesting_bomb_is_refused(where: str) -> None:
    bomb = '"x":' + "[" * 200_000 + "]" * 200_000
    assert refused(where % bomb).code == "nesting_too_deep"


def test_free_form_json_is_bounded_in_depth_and_size() -> None:
    def tools(parameters: dict[str, Any]) -> dict[str, Any]:
        return session(tools=[{"name": "a", "parameters": parameters}])

    def nested(levels: int) -> dict[str, Any]:
        value: dict[str, Any] = {}
        for _ in range(levels - 1):
            value = {"x": value}
        return value

    limits = WireLimits(max_json_depth_levels=5, max_tool_bytes=100)
    openai_ga.parse(json.dumps(tools(nested(5))), limits)
    refusal = refused(tools(nested(6)), limits)
    assert (refusal.code, refusal.param) == ("nesting_too_deep", "session.tools[0].parameters")
    openai_ga.parse(json.dumps(tools({"a": "x" * 92})), limits)
    assert refused(tools({"a": "x" * 93}), limits).code == "limit_exceeded"


def test_size_limits_hold_at_the_limit_and_one_more() -> None:
    text = {"type": "input_text", "text": "x" * 10}
    limits = WireLimits(
        max_item_text_chars=20, max_item_parts=2, max_tools=1, max_instructions_chars=3, max_output_tokens=9, max_input_items=1
    )
    within = [
        message("user", text, text),
        session(tools=[{"name": "a"}], instructions="abc", max_output_tokens=9),
        response(input=[message("user", text)["item"]], instructions="abc", max_output_tokens=9),
        {"type": "conversation.item.create", "item": {"type": "function_call_output", "call_id": "c", "output": "x" * 20}},
    ]
    for event in within:
        openai_ga.parse(json.dumps(event), limits)
    beyond = [
        (message("user", text, {"type": "input_text", "text": "x" * 11}), "item.content"),
        (message("user", text, text, {"type": "input_text", "text": ""}), "item.content"),
        (session(tools=[{"name": "a"}, {"name": "b"}]), "session.tools"),
        (session(instructions="abcd"), "session.instructions"),
        (session(max_output_tokens=10), "session.max_output_tokens"),
        (response(input=[message("user", text)["item"]] * 2), "response.input"),
        (response(instructions="abcd"), "response.instructions"),
        (response(max_output_tokens=10), "response.max_output_tokens"),
        ({"type": "conversation.item.create", "item": {"type": "function_call_output", "call_id": "c", "output": "x" * 21}}, "item.output"),
        (
            {"type": "conversation.item.create", "item": {"type": "function_call", "call_id": "c", "name": "f", "arguments": "x" * 21}},
            "item.arguments",
        ),
    ]
    for event, param in beyond:
        refusal = refused(event, limits)
        assert (refusal.code, refusal.param) == ("limit_exceeded", param)


def test_an_event_may_have_15_mib_and_not_a_byte_more() -> None:
    frame = '{"type":"input_audio_buffer.append","event_id":"e1","audio":"%s"}'
    room = LIMITS.max_event_bytes - len(frame % "")
    audio = "A" * (room // 4 * 4)
    padded = (frame % audio) + " " * (room - len(audio))
    assert len(padded) == LIMITS.max_event_bytes
    command = openai_ga.parse(padded, LIMITS)
    assert isinstance(command, commands.InputAppend)
    assert len(command.audio) == len(audio) // 4 * 3
    refusal = refused(padded + " ")
    assert (refusal.code, refusal.client_event_id) == ("event_too_large", "e1")


def test_the_size_of_an_event_is_counted_in_bytes() -> None:
    frame = json.dumps(session(instructions="é" * 50), ensure_ascii=False)
    assert refused(frame, WireLimits(max_event_bytes=len(frame) + 49)).code == "event_too_large"
    openai_ga.parse(frame, WireLimits(max_event_bytes=len(frame) + 50))


@pytest.mark.parametrize(
    "event",
    [
        {"type": "tell me <secret>"},
        session(output_modalities=["<secret>"]),
        session(tool_choice="<secret>"),
        session(type="<secret>"),
        session(audio={"output": {"voice": "<secret>" * 99}}),
        message("user", {"type": "<secret>"}),
        response(metadata={"<secret>": 1}),
        response(conversation="<secret>"),
        {"type": "input_audio_buffer.append", "audio": "<secret>"},
        {"type": "conversation.item.delete", "item_id": "<secret> <secret>"},
    ],
)
def test_messages_never_repeat_the_client(event: dict[str, Any]) -> None:
    refusal = refused(event)
    assert "secret" not in refusal.message
    assert "secret" not in (refusal.param or "")


def test_the_last_of_two_equal_keys_counts() -> None:
    frame = '{"type":"conversation.item.delete","item_id":"a","item_id":"b"}'
    assert openai_ga.parse(frame, LIMITS) == commands.ItemDelete(item_id="b")


@pytest.mark.behaviour("X2")
@pytest.mark.parametrize(
    ("frame", "number"),
    [
        ({"type": "session.upgrade", "client_seq": 7}, 7),
        ({"type": "conversation.item.delete", "client_seq": 7}, 7),
        ({"type": "input_audio_buffer.commit", "event_id": 1, "client_seq": 7}, 7),
        (b'{"type":"input_audio_buffer.commit","client_seq":7}', 7),
        ({"type": "session.upgrade"}, None),
        ({"type": "input_audio_buffer.commit", "client_seq": 0}, None),
        ({"type": "input_audio_buffer.commit", "client_seq": "7"}, None),
        ({"type": "session.upgrade", "client_seq": 2**53}, None),
        ('{"type":"session.upgrade","client_seq":7', None),
    ],
)
def test_a_refused_command_keeps_its_number(frame: str | bytes | dict[str, Any], number: int | None) -> None:
    assert refused(frame).client_seq == number
