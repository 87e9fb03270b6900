"""Sessions, items and responses as GA JSON objects. Every key is always there; what is not known is an explicit null."""

from __future__ import annotations

from typing import Any

from gateway.conversation.config import AudioFormat, Overlap, SemanticVad, ServerVad, SessionConfig, Tool, TurnDetection
from gateway.conversation.errors import ERRORS
from gateway.conversation.items import Item, Part, Response, Usage

from .ga_session_in import TOOL_CHOICES

_FORMAT_TYPES = {"pcm": "audio/pcm", "pcmu": "audio/pcmu", "pcma": "audio/pcma"}
_EXTRAS = ("tracing", "prompt", "reasoning", "parallel_tool_calls")


def session_object(session_id: str, config: SessionConfig, expires_at: int | None) -> dict[str, Any]:
    """The full effective session. expires_at: Unix seconds."""
    heard = config.transcription
    session: dict[str, Any] = {
        "type": "realtime",
        "object": "realtime.session",
        "id": session_id,
        "model": config.model,
        "expires_at": expires_at,
        "output_modalities": list(config.output_modalities),
        "instructions": config.instructions,
        "tools": [_tool(tool) for tool in config.tools],
        "tool_choice": _tool_choice(config.tool_choice),
        "max_output_tokens": _tokens(config.max_output_tokens),
        "truncation": config.extras.get("truncation", "auto"),
        "include": list(config.include) or None,
        "audio": {
            "input": {
                "format": format_object(config.input_format),
                "transcription": {"model": heard.model, "language": heard.language, "prompt": heard.prompt} if heard else None,
                "noise_reduction": {"type": config.noise_reduction} if config.noise_reduction else None,
                "turn_detection": _turn_detection(config.turn_detection),
            },
            "output": {"format": format_object(config.output_format), "voice": config.voice, "speed": config.speed},
        },
    }
    session.update((name, config.extras.get(name)) for name in _EXTRAS)
    if config.overlap is not None:
        session.update(_native(config, config.overlap))
        voice = config.reference_voice
        session["audio"]["output"]["reference_voice"] = {"rate": voice.rate, "length_ms": voice.told.length_ms} if voice else None
    return session


def _native(config: SessionConfig, overlap: Overlap) -> dict[str, Any]:
    """What only a native model's session has; a voice to speak like is told by its length."""
    words = list(overlap.acknowledgements)
    told = {"policy": overlap.policy, "acknowledgements": words, "short_ack_ms": overlap.short_ack_ms}
    return {"overlap": told, "model_options": config.model_options}


def format_object(audio: AudioFormat) -> dict[str, Any]:
    return {"type": _FORMAT_TYPES[audio.encoding], "rate": audio.rate}


def _turn_detection(turn: TurnDetection | None) -> dict[str, Any] | None:
    match turn:
        case ServerVad():
            return {
                "type": "server_vad",
                "threshold": turn.threshold,
                "prefix_padding_ms": turn.prefix_padding_ms,
                "silence_duration_ms": turn.silence_duration_ms,
                "idle_timeout_ms": turn.idle_timeout_ms,
                "create_response": turn.create_response,
                "interrupt_response": turn.interrupt_response,
            }
        case SemanticVad():
            return {
                "type": "semantic_vad",
                "eagerness": turn.eagerness,
                "create_response": turn.create_response,
                "interrupt_response": turn.interrupt_response,
            }
    return None


def _tool(tool: Tool) -> dict[str, Any]:
    return {"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.parameters}


def _tool_choice(choice: str) -> str | dict[str, str]:
    return choice if choice in TOOL_CHOICES else {"type": "function", "name": choice}


def _tokens(bound: int | None) -> int | str:
    return "inf" if bound is None else bound


def item_object(item: Item) -> dict[str, Any]:
    made: dict[str, Any] = {"id": item.id, "object": "realtime.item", "type": item.kind, "status": item.status}
    if item.kind == "message":
        made["role"] = item.role
        made["content"] = [_content(part) for part in item.content]
    else:
        made["call_id"] = item.call_id or ""
        if item.kind == "function_call":
            made["name"] = item.name or ""
            made["arguments"] = item.arguments or ""
        else:
            made["output"] = item.output or ""
    return made


def _content(part: Part) -> dict[str, Any]:
    match part.kind:
        case "input_text" | "output_text":
            return {"type": part.kind, "text": part.text or ""}
        case "input_audio":
            # null until the recognizer has answered
            return {"type": part.kind, "transcript": part.transcript}
        case "output_audio":
            return {"type": part.kind, "transcript": part.transcript or ""}
        case "input_image":
            return {"type": part.kind}


def part_object(part: Part) -> dict[str, str]:
    """The part of content_part events, which keep the short type names "audio" and "text"."""
    if part.kind in ("output_audio", "input_audio"):
        return {"type": "audio", "transcript": part.transcript or ""}
    return {"type": "text", "text": part.text or ""}


def response_object(response: Response) -> dict[str, Any]:
    return {
        "object": "realtime.response",
        "id": response.id,
        "status": response.status,
        "status_details": _status_details(response),
        "output": [item_object(item) for item in response.output],
        "conversation_id": response.conversation_id,
        "output_modalities": list(response.modalities),
        "max_output_tokens": _tokens(response.max_output_tokens),
        "audio": {"output": {"voice": response.voice}},
        "usage": None if response.status == "in_progress" else _usage(response.usage or Usage()),
        "metadata": response.metadata,
    }


def _status_details(response: Response) -> dict[str, Any] | None:
    if response.status in ("in_progress", "completed"):
        return None
    error = None
    if response.error_code is not None:
        kind = ERRORS.get(response.error_code, ERRORS["internal_error"]).type
        error = {"type": kind, "code": response.error_code, "message": response.error_message}
    return {"type": response.status, "reason": response.reason, "error": error}


def _usage(usage: Usage) -> dict[str, Any]:
    read, made = usage.input_text + usage.input_audio, usage.output_text + usage.output_audio
    return {
        "total_tokens": read + made,
        "input_tokens": read,
        "output_tokens": made,
        "input_token_details": {
            "text_tokens": usage.input_text,
            "audio_tokens": usage.input_audio,
            "image_tokens": 0,
            "cached_tokens": 0,
            "cached_tokens_details": {"text_tokens": 0, "audio_tokens": 0, "image_tokens": 0},
        },
        "output_token_details": {"text_tokens": usage.output_text, "audio_tokens": usage.output_audio},
    }
