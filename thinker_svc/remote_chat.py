"""Stage `llm`, answered by an outside OpenAI-compatible chat completions service."""

from __future__ import annotations

import re
from typing import Any

import httpx
import msgspec
from parley_stage.v1 import stage_pb2

from stage_kit.engine import Append, Card, InvalidConfig, Label, RemoteEngine
from stage_kit.slot import Slot
from thinker_svc.remote_chat_settings import ChatOptions, RemoteChatSettings, Target, target
from thinker_svc.remote_chat_stream import Completion, UpstreamError, events

FINISHED = {
    "stop": stage_pb2.Finish.REASON_STOP,
    "length": stage_pb2.Finish.REASON_LENGTH,
    "tool_calls": stage_pb2.Finish.REASON_STOP,
    "function_call": stage_pb2.Finish.REASON_STOP,
}
NAMED_REASONS = ("content_filter",)


class ServiceUnreachable(ConnectionError):
    """The configured service did not answer at start."""


class RemoteChatEngine(RemoteEngine):
    """Streams one completion for each prompt. Cancelling the task closes the connection, which is what stops the service."""

    def __init__(self, settings: RemoteChatSettings | None = None) -> None:
        self._settings = settings or RemoteChatSettings()
        model = self._settings.model or "outside"
        self.card = Card("llm", "openai-chat", model, ("messages",), ("text", "tool"), slots=self._settings.slots, capabilities=("tools",))

    async def load(self) -> None:
        """Asks the configured service for its models. Raises ServiceUnreachable; a service without that list is taken as it is."""
        settings = self._settings
        timeout = httpx.Timeout(settings.timeout_ms / 1000, connect=settings.connect_timeout_ms / 1000)
        limits = httpx.Limits(max_connections=settings.slots, max_keepalive_connections=settings.slots)
        self._client = httpx.AsyncClient(timeout=timeout, limits=limits)
        if not settings.base_url:
            return
        url = f"{settings.base_url.rstrip('/')}/models"
        headers = target(settings, ChatOptions(model="probe")).headers()
        try:
            answer = await self._client.get(url, headers=headers, timeout=settings.connect_timeout_ms / 1000)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServiceUnreachable(f"cannot reach {url}: {type(error).__name__}") from None
        if answer.status_code in (401, 403) or answer.status_code >= 500:
            raise ServiceUnreachable(f"{url} answered {answer.status_code}")

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._client.aclose()

    def validate(self, config: dict[str, Any]) -> Target:
        try:
            options = msgspec.convert(config, ChatOptions)
        except msgspec.ValidationError as error:
            found = re.search(r"unknown field `([^`]*)`|`\$\.([^`]*)`", str(error))
            raise InvalidConfig(next(filter(None, found.groups()), "") if found else "", str(error)) from None
        try:
            return target(self._settings, options)
        except ValueError as error:
            param, _, why = str(error).partition(": ")
            raise InvalidConfig(param, why) from None

    async def answer(self, slot: Slot, append: Append) -> None:
        if append.payload is None:
            return
        try:
            await self._complete(slot, append.label, append.payload.messages)
        except UpstreamError as error:
            _fail(slot, append.label, str(error))
        except httpx.TimeoutException:
            _fail(slot, append.label, "the outside service did not answer in time")
        except (httpx.HTTPError, httpx.InvalidURL):
            _fail(slot, append.label, "the connection to the outside service failed")

    async def _complete(self, slot: Slot, label: Label, messages: stage_pb2.Messages) -> None:
        chosen: Target = slot.config
        completion = Completion(self._settings.max_output_chars)
        async with self._client.stream("POST", chosen.url, json=_request(chosen, messages), headers=chosen.headers()) as response:
            if response.status_code != 200:
                raise UpstreamError(f"the outside service answered {response.status_code}")
            try:
                async for event in events(response.aiter_bytes(), self._settings.event_bytes):
                    if text := completion.take(event):
                        slot.emit(stage_pb2.Payload(text=stage_pb2.Text(text=text)), label)
                        await slot.room()
            except httpx.HTTPError:
                # after the finish reason only the token counts are missing
                if not completion.reason:
                    raise
        if not completion.reason:
            raise UpstreamError("LLM stream ended before completion")
        if completion.reason not in FINISHED:
            reason = completion.reason if completion.reason in NAMED_REASONS else "an unknown reason"
            raise UpstreamError(f"LLM stopped with {reason}")
        for call in completion.calls():
            tool = stage_pb2.ToolCall(call_id=call.call_id, name=call.name, arguments_json=call.arguments or "{}")
            slot.emit(stage_pb2.Payload(tool=tool), label)
        usage = completion.usage
        finish = stage_pb2.Finish(
            reason=FINISHED[completion.reason], input_tokens=max(usage.prompt_tokens, 0), output_tokens=max(usage.completion_tokens, 0)
        )
        slot.emit(None, label, last=True, finish=finish)


def _request(chosen: Target, messages: stage_pb2.Messages) -> dict[str, Any]:
    body: dict[str, Any] = {"stream_options": {"include_usage": True}}
    if messages.tools:
        body["tools"] = [_tool(tool) for tool in messages.tools]
        body["tool_choice"] = _tool_choice(messages.tool_choice)
    if chosen.temperature is not None:
        body["temperature"] = chosen.temperature
    max_tokens = min(messages.max_tokens or chosen.max_tokens, chosen.max_tokens)
    own = {"model": chosen.model, "messages": [_message(message) for message in messages.messages], "stream": True}
    return body | chosen.extra_body | own | {"max_tokens": max_tokens}


def _message(message: stage_pb2.Message) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.role == "tool":
        plain["tool_call_id"] = message.call_id
    if message.tool_calls:
        plain["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}
            for call in message.tool_calls
        ]
    return plain


def _tool(tool: stage_pb2.ToolSpec) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "description": tool.description}
    if tool.parameters_json:
        function["parameters"] = msgspec.json.decode(tool.parameters_json)
    return {"type": "function", "function": function}


def _tool_choice(choice: str) -> Any:
    if choice in ("", "auto", "none", "required"):
        return choice or "auto"
    return {"type": "function", "function": {"name": choice}}


def _fail(slot: Slot, label: Label, message: str) -> None:
    slot.fail(label, message, code=stage_pb2.StageError.CODE_UPSTREAM_FAILED)
