"""Configuration rules: what an update may change, and what each stage is told of it."""

from __future__ import annotations

import json
from binascii import b2a_base64
from typing import Any

import msgspec
from msgspec import UNSET

from gateway.graph import Graph, SessionField, StageMapping

from .config import Overlap, SemanticVad, ServerVad, SessionConfig, SessionPatch
from .errors import Refusal
from .recap import Recap

DEFAULT_VOICE = "default"
_MERGED = ("extras", "model_options")
_PARAMS: dict[str, str] = {
    "instructions": "session.instructions",
    "voice": "session.audio.output.voice",
    "speed": "session.audio.output.speed",
    "reference_voice": "session.audio.output.reference_voice",
    "reference_rate_hz": "session.audio.output.reference_voice",
}


def apply(config: SessionConfig, patch: SessionPatch, *, voice_used: bool, speaking: bool) -> SessionConfig:
    """The configuration after the patch. Raises Refusal and changes nothing."""
    replaced = [field for field in patch.__struct_fields__ if field not in (*_MERGED, "overlap")]
    changes: dict[str, Any] = {field: value for field in replaced if (value := getattr(patch, field)) is not UNSET}
    if patch.overlap is not UNSET:
        changes["overlap"] = patch.overlap.over(config.overlap or Overlap())
    for field in _MERGED:
        if (given := getattr(patch, field)) is not UNSET:
            merged = {**getattr(config, field), **given}
            changes[field] = {key: value for key, value in merged.items() if value is not None}
    if changes.get("model", config.model) != config.model:
        raise Refusal("model_update_unsupported", "session.model")
    if voice_used and changes.get("voice", config.voice) != config.voice:
        raise Refusal("voice_update_after_audio", "session.audio.output.voice")
    for field, param in (("input_format", "session.audio.input.format"), ("output_format", "session.audio.output.format")):
        if speaking and changes.get(field, getattr(config, field)) != getattr(config, field):
            raise Refusal("format_update_during_speech", param)
    return msgspec.structs.replace(config, **changes)


def stage_config(graph: Graph, stage: str, config: SessionConfig, recap: Recap | None = None) -> dict[str, Any]:
    """What one stage is told of the session's configuration: a JSON object that its engine validates. The profile's mapping, if it has one.

    recap: of the conversation before the stage was placed anew.
    """
    if (mapping := graph.mappings.get(stage)) is not None:
        return _mapped(mapping, config, recap)
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


def stage_config_json(graph: Graph, stage: str, config: SessionConfig, recap: Recap | None = None) -> str:
    return json.dumps(stage_config(graph, stage, config, recap), separators=(",", ":"), sort_keys=True)


def _mapped(mapping: StageMapping, config: SessionConfig, recap: Recap | None) -> dict[str, Any]:
    told = dict(mapping.values)
    for field, source in mapping.session.items():
        if (value := _of_session(source, config, recap)) is not None:
            told[field] = value
    told.update((field, config.model_options[name]) for field, name in mapping.options.items() if name in config.model_options)
    return told


def _of_session(source: SessionField, config: SessionConfig, recap: Recap | None) -> Any:
    """None: nothing to be said about it."""
    voice = config.reference_voice
    match source:
        case "instructions":
            return config.instructions or None
        case "voice":
            return None if voice is not None or config.voice == DEFAULT_VOICE else config.voice
        case "reference_voice":
            return None if voice is None else b2a_base64(voice.pcm, newline=False).decode()
        case "reference_rate_hz":
            return None if voice is None else voice.rate
        case "speed":
            return config.speed
        case "history":
            return recap.text or None if recap is not None else None
        case "heard_until_ms":
            return None if recap is None else recap.heard_until_ms
        case "unit_log":
            return list(recap.unit_log) or None if recap is not None else None


def session_param(graph: Graph, stage: str, field: str) -> str:
    """The client's name of what a stage calls by its own."""
    mapping = graph.mappings.get(stage)
    if mapping is None:
        return f"session.{field}"
    if field in mapping.options:
        return f"session.model_options.{mapping.options[field]}"
    return _PARAMS.get(mapping.session.get(field, ""), f"session.{field}")


def auto_reply(config: SessionConfig) -> bool:
    return config.turn_detection is not None and config.turn_detection.create_response


def interrupts(config: SessionConfig) -> bool:
    return config.turn_detection is not None and config.turn_detection.interrupt_response


def idle_timeout_ms(config: SessionConfig) -> int | None:
    return config.turn_detection.idle_timeout_ms if isinstance(config.turn_detection, ServerVad) else None
