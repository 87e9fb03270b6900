"""The stream of an OpenAI-compatible chat completion, read strictly."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

import msgspec


class UpstreamError(Exception):
    """The outside service failed. The message is one line of ours and never quotes the service."""


class CallDelta(msgspec.Struct):
    """A piece of a function call; pieces of one index belong together."""

    class Function(msgspec.Struct):
        name: str | None = None
        arguments: str | None = None

    index: int = 0
    id: str | None = None
    function: Function | None = None


class Delta(msgspec.Struct):
    content: str | None = None
    tool_calls: list[CallDelta] | None = None


class Choice(msgspec.Struct):
    delta: Delta | None = None
    finish_reason: str | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Event(msgspec.Struct):
    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


class Call(msgspec.Struct):
    """A whole function call."""

    call_id: str = ""
    name: str = ""
    arguments: str = ""


class Completion:
    """Gathers one answer. Raises UpstreamError where the service breaks the protocol or a bound."""

    def __init__(self, max_chars: int) -> None:
        self._left = max_chars
        self._half = ""  # first half of a surrogate pair that the service cut in two
        self._calls: dict[int, Call] = {}
        self.reason = ""
        self.usage = Usage()

    def take(self, event: Event) -> str:
        """Text to pass on now; may be empty."""
        if event.error is not None:
            raise UpstreamError("the outside service reported an error")
        if event.usage is not None:
            self.usage = event.usage
        if not event.choices:
            return ""
        choice = event.choices[0]
        self.reason = choice.finish_reason or self.reason
        if choice.delta is None:
            return ""
        for piece in choice.delta.tool_calls or ():
            self._take_call(piece)
        return self._whole(choice.delta.content or "")

    def calls(self) -> list[Call]:
        """Finished calls in order. Raises UpstreamError for one without a name or with arguments that are no JSON object."""
        for call in self._calls.values():
            try:
                is_object = isinstance(json.loads(call.arguments or "{}"), dict)
            except ValueError:
                is_object = False
            if not call.name or not is_object:
                raise UpstreamError("the outside service sent an unreadable call")
        return [self._calls[index] for index in sorted(self._calls)]

    def _take_call(self, piece: CallDelta) -> None:
        call = self._calls.setdefault(piece.index, Call())
        call.call_id = piece.id or call.call_id
        if piece.function is not None:
            call.name = call.name or piece.function.name or ""
            call.arguments += self._bounded(piece.function.arguments or "")

    def _whole(self, text: str) -> str:
        text, self._half = self._half + text, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return self._bounded(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))

    def _bounded(self, text: str) -> str:
        self._left -= len(text)
        if self._left < 0:
            raise UpstreamError("the outside service's answer exceeds max_output_chars")
        return text


async def events(body: AsyncIterable[bytes], line_bytes: int) -> AsyncIterator[Event]:
    """Events up to `[DONE]` or the end of the body, however its bytes are cut. Raises UpstreamError."""
    held = b""
    async for block in body:
        # only line feeds end lines here: text may hold other characters that str.splitlines would cut at
        *lines, held = (held + block).split(b"\n")
        for line in lines:
            if (data := _data(line)) is not None:
                if data == b"[DONE]":
                    return
                yield _event(data)
        if len(held) > line_bytes:
            raise UpstreamError("the outside service sent an event over event_bytes")
    if (data := _data(held)) is not None and data != b"[DONE]":
        yield _event(data)


def _data(line: bytes) -> bytes | None:
    name, _, value = line.rstrip(b"\r").partition(b":")
    return value.strip() if name == b"data" and value.strip() else None


def _event(data: bytes) -> Event:
    try:
        # the json module, because it lets halves of surrogate pairs through, which are joined later
        return msgspec.convert(json.loads(data), Event)
    except (ValueError, RecursionError):
        raise UpstreamError("the outside service sent an unreadable event") from None
