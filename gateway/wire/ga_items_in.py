"""Items and responses that a client creates -> domain items and options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pybase64

from gateway.conversation.commands import Frame
from gateway.conversation.config import ResponseOptions
from gateway.conversation.items import Item, ItemStatus, Part

from . import ga_shapes as shapes
from . import pictures
from .ga_session_in import limited, modalities, refuse_beta, token_bound, tool_choice, tools, voice
from .limits import WireLimits
from .problems import WireRefusal, invalid, over_limit, unsupported

_ALLOWED = {
    "system": (shapes.InputText,),
    "user": (shapes.InputText, shapes.InputAudio, shapes.InputImage),
    "assistant": (shapes.OutputText, shapes.OutputAudio),
}


def decode_audio(text: str, param: str) -> bytes:
    """Standard base64 with padding; whitespace and foreign characters are refused."""
    try:
        return pybase64.b64decode(text, validate=True)
    except ValueError as error:
        raise WireRefusal("invalid_audio", param) from error


def item(shape: shapes.ItemShape, limits: WireLimits, param: str) -> Item:
    """The domain item; an empty id asks the core for one. An item that a client creates is never in progress."""
    made_id = shape.id or ""
    status: ItemStatus = "incomplete" if shape.status == "incomplete" else "completed"
    if isinstance(shape, shapes.CallShape):
        limited(shape.arguments, limits.max_item_text_chars, f"{param}.arguments")
        return Item(made_id, "function_call", status=status, call_id=shape.call_id, name=shape.name, arguments=shape.arguments)
    if isinstance(shape, shapes.CallOutputShape):
        limited(shape.output, limits.max_item_text_chars, f"{param}.output")
        return Item(made_id, "function_call_output", status=status, call_id=shape.call_id, output=shape.output)
    return Item(made_id, role=shape.role, status=status, content=_content(shape, limits, f"{param}.content"))


def _content(shape: shapes.MessageShape, limits: WireLimits, param: str) -> tuple[Part, ...]:
    if not shape.content:
        raise WireRefusal("invalid_item", param, why="a message needs content")
    if len(shape.content) > limits.max_item_parts:
        raise over_limit(param, limits.max_item_parts, "parts")
    parts = []
    for index, content in enumerate(shape.content):
        where = f"{param}[{index}]"
        if isinstance(content, shapes.BetaText | shapes.BetaAudio):
            raise WireRefusal("beta_api_unsupported", f"{where}.type")
        if not isinstance(content, _ALLOWED[shape.role]):
            raise WireRefusal("invalid_item", f"{where}.type", why=f"a message of role {shape.role} cannot hold this kind of content")
        parts.append(_PARTS[type(content)](content, where))
    if sum(len(part.text or part.transcript or "") for part in parts) > limits.max_item_text_chars:
        raise over_limit(param, limits.max_item_text_chars, "characters")
    return tuple(parts)


def _input_audio(content: shapes.InputAudio, where: str) -> Part:
    if content.audio:
        decode_audio(content.audio, f"{where}.audio")
    if content.transcript is None:
        # Sound reaches a recognizer only on the input lane, in time order.
        raise WireRefusal("invalid_item", f"{where}.transcript", why="audio without a transcript goes into the input audio buffer")
    return Part("input_audio", transcript=content.transcript)


def frames(shape: shapes.ItemShape, limits: WireLimits, param: str) -> tuple[Frame, ...]:
    """What the image parts of a created item show."""
    if not isinstance(shape, shapes.MessageShape):
        return ()
    return tuple(
        pictures.from_url(content.image_url, limits, f"{param}.content[{index}].image_url")
        for index, content in enumerate(shape.content)
        if isinstance(content, shapes.InputImage)
    )


def _output_audio(content: shapes.OutputAudio, where: str) -> Part:
    raise WireRefusal("invalid_item", f"{where}.type", why="assistant audio cannot be created; use output_text")


_PARTS: dict[type[Any], Callable[[Any, str], Part]] = {
    shapes.InputText: lambda content, where: Part("input_text", text=content.text),
    shapes.OutputText: lambda content, where: Part("output_text", text=content.text),
    shapes.InputAudio: _input_audio,
    shapes.InputImage: lambda content, where: Part("input_image"),
    shapes.OutputAudio: _output_audio,
}


def response_options(shape: shapes.ResponseShape | None, limits: WireLimits) -> ResponseOptions:
    """What one response.create asks for. "inf" there means the greatest bound, because None means the session's."""
    if shape is None:
        return ResponseOptions()
    refuse_beta(shape, shapes.BETA_RESPONSE_FIELDS, "response")
    output = shape.audio.output if shape.audio else None
    if output is not None and output.format is not None:
        raise unsupported("response.audio.output.format", "the format belongs to the session")
    if output is not None and output.speed is not None:
        raise unsupported("response.audio.output.speed", "the speed belongs to the session")
    if shape.prompt is not None:
        raise unsupported("response.prompt", "prompt templates are not offered")
    if shape.conversation not in (None, "auto", "none"):
        raise unsupported("response.conversation", "auto and none are offered")
    tokens = shape.max_output_tokens
    return ResponseOptions(
        instructions=limited(shape.instructions, limits.max_instructions_chars, "response.instructions"),
        output_modalities=modalities(shape.output_modalities, "response.output_modalities"),
        voice=voice(output.voice) if output else None,
        max_output_tokens=limits.max_output_tokens if tokens == "inf" else _bound(tokens, limits),
        tools=tools(shape.tools, limits, "response.tools"),
        tool_choice=tool_choice(shape.tool_choice, "response.tool_choice"),
        metadata=shape.metadata,
        out_of_band=shape.conversation == "none",
        input=_input(shape.input, limits),
    )


def _bound(tokens: int | str | None, limits: WireLimits) -> int | None:
    return None if tokens is None else token_bound(tokens, limits, "response.max_output_tokens")


def _input(items: list[shapes.ItemShape] | None, limits: WireLimits) -> tuple[Item, ...] | None:
    if items is None:
        return None
    if len(items) > limits.max_input_items:
        raise over_limit("response.input", limits.max_input_items, "items")
    made = tuple(item(shape, limits, f"response.input[{index}]") for index, shape in enumerate(items))
    if any(part.kind == "input_image" for one in made for part in one.content):
        raise WireRefusal("invalid_item", "response.input", why="no model that is asked here reads images")
    ids = [one.id for one in made if one.id]
    if len(set(ids)) != len(ids):
        raise invalid("response.input", "two items have the same id")
    return made
