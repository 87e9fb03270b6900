"""Configuration rules: what an update may change, and what each stage is told of it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec import UNSET

from .config import SemanticVad, ServerVad, SessionConfig, SessionPatch
from .errors import Refusal


def apply(config: SessionConfig, patch: SessionPatch, *, voice_used: bool, speaking: bool) -> SessionConfig:
    """The configuration after the patch. Raises Refusal and changes nothing."""
    changes: dict[str, Any] = {
        field: value for field in patch.__struct_fields__ if (value := getattr(patch, field)) is not UNSET and field != "extras"
    }
    if patch.extras is not UNSET:
        merged = {**config.extras, **patch.extras}
        changes["extras"] = {key: value for key, value in merged.items() if value is not None}
    if changes.get("model", config.model) != config.model:
        raise Refusal("model_update_unsupported", "session.model")
    if voice_used and changes.get("voice", config.voice) != config.voice:
        raise Refusal("voice_update_after_audio", "session.audio.output.voice")
    for field, param in (("input_format", "session.audio.input.format"), ("output_format", "session.audio.output.format")):
        if speaking and changes.get(field, getattr(config, field)) != getattr(config, field):
            raise Refusal("format_update_during_speech", param)
    return msgspec.structs.replace(config, **changes)


def stage_config(stage: str, config: SessionConfig) -> dict[str, Any]:
    """What one stage is told of the session's configuration: a JSON object that its engine validates."""
    match stage:
        case "turn":
            match config.turn_detection:
                case ServerVad() as vad:
                    return {
                        "mode": "server_vad",
                        "threshold": vad.threshold,
                        "prefix_padding_ms": vad.prefix_padding_ms,
                        "silence_duration_ms": vad.silence_duration_ms,
                    }
                case SemanticVad() as vad:
                    return {"mode": "semantic_vad", "eagerness": vad.eagerness}
                case _:
                    return {"mode": "none"}
        case "asr":
            language = config.transcription.language if config.transcription else None
            return {"language": language} if language else {}
        case "talker":
            return {"voice": config.voice, "speed": config.speed}
        case _:
            return {}


def stage_config_json(stage: str, config: SessionConfig) -> str:
    return json.dumps(stage_config(stage, config), separators=(",", ":"), sort_keys=True)


def auto_reply(config: SessionConfig) -> bool:
    return config.turn_detection is not None and config.turn_detection.create_response


def interrupts(config: SessionConfig) -> bool:
    return config.turn_detection is not None and config.turn_detection.interrupt_response


def idle_timeout_ms(config: SessionConfig) -> int | None:
    return config.turn_detection.idle_timeout_ms if isinstance(config.turn_detection, ServerVad) else None
