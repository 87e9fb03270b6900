"""The outside chat engine against a real HTTP server, through a real replica."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from parley_stage.v1 import stage_pb2
from pydantic import ValidationError

from stage_kit import InvalidConfig, Label
from tests.stage_kit.support import Conversation, serving
from tests.thinker_svc.support.chat_service import SECRET_BODY, ChatService, chat_service
from thinker_svc.remote_chat import RemoteChatEngine, ServiceUnreachable
from thinker_svc.remote_chat_settings import ChatOptions, RemoteChatSettings, target
from thinker_svc.remote_chat_stream import UpstreamError, events

STOP, LENGTH, FAILED = stage_pb2.Finish.REASON_STOP, stage_pb2.Finish.REASON_LENGTH, stage_pb2.Finish.REASON_FAILED
SAID = "Grüße 👩‍👩‍👧 line\u2028sep 漢字"
KEY = "sk-very-secret"


@asynccontextmanager
async def talking(model: str, config: dict[str, Any] | None = None, **settings: Any) -> AsyncIterator[tuple[Conversation, ChatService]]:
    async with chat_service() as service:
        engine = RemoteChatEngine(RemoteChatSettings(base_url=service.base_url, model=model, **settings))
        async with serving(engine) as (client, _):
            talk = client.converse(stage="llm")
            await talk.open(json.dumps(config or {}))
            yield talk, service
        await engine.aclose()


async def ask(talk: Conversation, label: Label, messages: stage_pb2.Messages | None = None) -> None:
    asked = messages or stage_pb2.Messages(messages=[stage_pb2.Message(role="user", content="Hi")])
    await talk.append(stage_pb2.Payload(messages=asked), label, last=True)


async def answer(talk: Conversation, label: Label) -> tuple[str, list[stage_pb2.ToolCall], stage_pb2.Finish]:
    text, calls = "", []
    while True:
        chunk = (await talk.read("chunk")).chunk
        assert Label.of(chunk.label) == label
        text += chunk.payload.text.text
        if chunk.payload.WhichOneof("value") == "tool":
            calls.append(chunk.payload.tool)
        if chunk.last:
            return text, calls, chunk.finish


ONE = Label(1, 1, "r1")


@pytest.mark.parametrize(("model", "reason"), [("say:stop", STOP), ("say:length", LENGTH)])
async def test_an_answer_streams_whatever_way_its_bytes_are_cut(model: str, reason: int) -> None:
    async with talking(model) as (talk, _):
        await ask(talk, ONE)
        text, _, finish = await answer(talk, ONE)
        assert text == SAID
        assert (finish.reason, finish.input_tokens, finish.output_tokens) == (reason, 11, 7)


async def test_a_pair_of_surrogates_in_two_events_is_one_character() -> None:
    async with talking("halves") as (talk, _):
        await ask(talk, ONE)
        assert (await answer(talk, ONE))[0] == "😀!"


async def test_the_request_is_what_the_settings_and_the_prompt_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_CHAT_KEY", KEY)
    call = stage_pb2.ToolCall(call_id="c1", name="clock", arguments_json="{}")
    messages = stage_pb2.Messages(
        messages=[
            stage_pb2.Message(role="system", content="Be kind."),
            stage_pb2.Message(role="assistant", tool_calls=[call]),
            stage_pb2.Message(role="tool", content="12:00", call_id="c1"),
        ],
        max_tokens=9,
        tools=[stage_pb2.ToolSpec(name="clock", description="Tells the time", parameters_json='{"type":"object"}')],
        tool_choice="clock",
    )
    async with talking("say", temperature=0.5, extra_body={"seed": 4}, api_key_env="TEST_CHAT_KEY") as (talk, service):
        await ask(talk, ONE, messages)
        await answer(talk, ONE)
        function = {"name": "clock", "arguments": "{}"}
        assert service.keys == [f"Bearer {KEY}"]
        assert service.requests == [
            {
                "model": "say",
                "messages": [
                    {"role": "system", "content": "Be kind."},
                    {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function", "function": function}]},
                    {"role": "tool", "content": "12:00", "tool_call_id": "c1"},
                ],
                "stream": True,
                "stream_options": {"include_usage": True},
                "max_tokens": 9,
                "temperature": 0.5,
                "seed": 4,
                "tools": [
                    {"type": "function", "function": {"name": "clock", "description": "Tells the time", "parameters": {"type": "object"}}}
                ],
                "tool_choice": {"type": "function", "function": {"name": "clock"}},
            }
        ]


async def test_calls_are_gathered_and_given_whole() -> None:
    async with talking('tools:{"zone":"UTC"}') as (talk, _):
        await ask(talk, ONE)
        _, calls, finish = await answer(talk, ONE)
        assert [(call.call_id, call.name, call.arguments_json) for call in calls] == [
            ("c1", "clock", '{"zone":"UTC"}'),
            ("c2", "stop", "{}"),
        ]
        assert finish.reason == STOP


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("status:401", "answered 401"),
        ("status:429", "answered 429"),
        ("status:500", "answered 500"),
        ("cut", "LLM stream ended before completion"),
        ("say:content_filter", "LLM stopped with content_filter"),
        (f"say:{SECRET_BODY}", "LLM stopped with an unknown reason"),
        (f"raw:data: {SECRET_BODY}\n\n", "unreadable event"),
        ('raw:data: {"choices":[{"delta":{"content":5}}]}\n\n', "unreadable event"),
        (f'raw:data: {{"error":{{"message":"{SECRET_BODY}"}}}}\n\n', "reported an error"),
        ("raw:data: [DONE]\n\n", "LLM stream ended before completion"),
        ("tools:[1]", "unreadable call"),
        ("tools:{", "unreadable call"),
        ("hang", "did not answer in time"),
        ("endless", "exceeds max_output_chars"),
        (f"raw:data: {'x' * 3000}", "event over event_bytes"),
    ],
)
@pytest.mark.behaviour("S2")
async def test_a_failing_service_fails_one_response(
    model: str, words: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    async with talking(model, timeout_ms=300, max_output_chars=400, event_bytes=1024) as (talk, _):
        await ask(talk, ONE)
        *_, finish = await answer(talk, ONE)
        assert finish.reason == FAILED
        assert finish.error.code == stage_pb2.StageError.CODE_UPSTREAM_FAILED
        assert words in finish.error.message and "\n" not in finish.error.message
        assert SECRET_BODY not in finish.error.message
        # the session lives
        await ask(talk, Label(1, 2, "r2"))
        assert (await answer(talk, Label(1, 2, "r2")))[2].reason == FAILED
    logged = "".join(capfd.readouterr())
    assert KEY not in logged and SECRET_BODY not in logged


@pytest.mark.behaviour("F4", "F9")
async def test_a_cancel_closes_the_services_connection() -> None:
    async with talking("endless", max_output_chars=10_000_000) as (talk, service):
        await ask(talk, ONE)
        await talk.read("chunk")
        await talk.cancel(1, 2)
        await talk.read("cancelled")
        async with asyncio.timeout(5):
            assert await service.gone.get() == "endless"


async def test_a_service_that_goes_away_fails_the_response() -> None:
    async with chat_service() as service:
        engine = RemoteChatEngine(RemoteChatSettings(base_url=service.base_url, model="say"))
        await engine.load()
    async with serving(RemoteChatEngine(RemoteChatSettings(model="say"))) as (client, _):
        talk = client.converse(stage="llm")
        await talk.open(json.dumps({"base_url": service.base_url}))
        await ask(talk, ONE)
        *_, finish = await answer(talk, ONE)
        assert finish.error.message == "the connection to the outside service failed"
    with pytest.raises(ServiceUnreachable, match="cannot reach"):
        await engine.load()


@pytest.mark.parametrize("status", [401, 503])
async def test_a_service_that_refuses_at_start_is_told(status: int) -> None:
    async with chat_service() as service:
        service.models_status = status
        engine = RemoteChatEngine(RemoteChatSettings(base_url=service.base_url, model="say"))
        with pytest.raises(ServiceUnreachable, match=f"answered {status}"):
            await engine.load()
        service.models_status = 404
        await engine.load()


def test_a_key_may_lie_in_a_file_and_counts_once_it_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key"
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY_FILE", str(path))
    asked = target(RemoteChatSettings(base_url="http://localhost:1/v1", model="m"), ChatOptions())
    assert asked.headers() == {}, "not there yet"
    for key in ("sk-first", "sk-second"):
        path.write_text(f"{key}\n")
        assert asked.headers() == {"Authorization": f"Bearer {key}"} and key not in repr(asked)


async def test_a_profile_may_name_its_own_service_and_gets_no_foreign_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OTHER_KEY", "sk-other")
    async with chat_service() as service:
        engine = RemoteChatEngine(RemoteChatSettings(base_url="", model="say"))
        async with serving(engine) as (client, _):
            for at, own in enumerate(({}, {"api_key_env": "OTHER_KEY"})):
                talk = client.converse(f"s{at}", "llm")
                await talk.open(json.dumps({"base_url": service.base_url, **own}))
                await ask(talk, ONE)
                assert (await answer(talk, ONE))[0] == SAID
        assert service.keys == [None, "Bearer sk-other"]


@pytest.mark.parametrize(
    ("config", "param", "why"),
    [
        ({"extra_body": {"model": "x", "stream": False}}, "extra_body", "extra_body cannot set ['model', 'stream']"),
        ({"base_url": "ftp://host/v1"}, "base_url", "http or https"),
        ({"base_url": "http://user:word@host/v1"}, "base_url", "credentials"),
        ({"model": ""}, "model", "names a model"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"temperature": 3}, "temperature", "between 0 and 2"),
        ({"temperature": "hot"}, "temperature", "Expected"),
        ({"api_key": "sk"}, "api_key", "unknown field"),
    ],
)
def test_a_bad_configuration_is_refused_by_field(config: dict[str, Any], param: str, why: str) -> None:
    engine = RemoteChatEngine(RemoteChatSettings(base_url="http://localhost:1/v1", model="m"))
    with pytest.raises(InvalidConfig) as caught:
        engine.validate(config)
    assert caught.value.param == param and why in caught.value.why


def test_settings_are_checked_too_and_hold_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("PARLEY_CHAT_BASE_URL", "http://localhost:1/v1")
    monkeypatch.setenv("PARLEY_CHAT_MODEL", "m")
    settings = RemoteChatSettings()
    assert KEY not in repr(settings) and KEY not in repr(RemoteChatEngine(settings).validate({}))
    with pytest.raises(ValidationError, match="extra_body cannot set"):
        RemoteChatSettings(extra_body={"messages": []})
    with pytest.raises(ValidationError, match="http or https"):
        RemoteChatSettings(base_url="file:///etc/passwd")


async def test_events_survive_every_cut() -> None:
    body = 'data: {"choices":[{"delta":{"content":"é👍"}}]}\r\n\r\n: note\ndata:{"choices":[]}\n\ndata: [DONE]\n\n'.encode()

    async def cut(at: int) -> AsyncIterator[bytes]:
        yield body[:at]
        yield body[at:]

    for at in range(len(body) + 1):
        found = [event async for event in events(cut(at), 1024)]
        assert len(found) == 2 and found[0].choices[0].delta is not None
        assert found[0].choices[0].delta.content == "é👍"


async def test_a_line_without_an_end_is_bounded() -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 100

    with pytest.raises(UpstreamError, match="event_bytes"):
        async for _ in events(endless(), 1024):
            pass
