"""session.update -> SessionPatch: the GA shape checked by hand where the choice of values is ours."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import pybase64
from msgspec import UNSET, Struct, UnsetType

from gateway.conversation.config import (
    AudioFormat,
    Modality,
    OverlapPatch,
    ReferenceVoice,
    SemanticVad,
    ServerVad,
    SessionPatch,
    Tool,
    Transcription,
    TurnDetection,
)

from . import ga_session_shapes as shapes
from .limits import WireLimits
from .problems import WireRefusal, invalid, over_limit, unsupported

_FORMATS = {
    "audio/pcm": ("pcm", (24_000, 16_000)),
    "audio/pcmu": ("pcmu", (8_000,)),
    "audio/pcma": ("pcma", (8_000,)),
}
T = TypeVar("T")
TOOL_CHOICES = ("auto", "none", "required")


def session_patch(session: shapes.SessionShape, limits: WireLimits) -> SessionPatch:
    refuse_beta(session, shapes.BETA_SESSION_FIELDS, "session")
    if session.type is UNSET:
        raise WireRefusal("missing_field", "session.type")
    audio = session.audio or shapes.AudioShape()
    patch = SessionPatch(
        model=given(session.model),
        instructions=given(limited(session.instructions, limits.max_instructions_chars, "session.instructions")),
        output_modalities=given(modalities(session.output_modalities, "session.output_modalities")),
        tools=given(tools(session.tools, limits, "session.tools")),
        tool_choice=given(tool_choice(session.tool_choice, "session.tool_choice")),
        max_output_tokens=_session_tokens(session.max_output_tokens, limits),
        include=given(None if session.include is None else tuple(dict.fromkeys(session.include))),
        extras=_extras(session, limits),
        overlap=_overlap(session.overlap),
        model_options=given(None if session.model_options is None else plain(session.model_options, limits, "session.model_options")),
        **_audio_in(audio.input or shapes.AudioIn()),
        **_audio_out(audio.output or shapes.AudioOut(), limits),
    )
    if session.type == "transcription":
        raise unsupported("session.type", "transcription sessions are not offered; every realtime session can transcribe")
    return patch


def _audio_in(audio: shapes.AudioIn) -> dict[str, Any]:
    where = "session.audio.input"
    patch: dict[str, Any] = {"input_format": given(audio_format(audio.format, f"{where}.format"))}
    if audio.noise_reduction is not UNSET:
        patch["noise_reduction"] = audio.noise_reduction.type if audio.noise_reduction else None
    if audio.turn_detection is not UNSET:
        patch["turn_detection"] = _turn_detection(audio.turn_detection)
    if audio.transcription is not UNSET:
        heard = audio.transcription
        patch["transcription"] = Transcription(heard.model or "", heard.language, heard.prompt) if heard else None
    return patch


def _audio_out(audio: shapes.AudioOut, limits: WireLimits) -> dict[str, Any]:
    return {
        "reference_voice": _reference_voice(audio.reference_voice, limits),
        "output_format": given(audio_format(audio.format, "session.audio.output.format")),
        "voice": given(voice(audio.voice)),
        "speed": given(audio.speed),
    }


def _reference_voice(shape: shapes.ReferenceVoiceShape | UnsetType | None, limits: WireLimits) -> ReferenceVoice | UnsetType | None:
    if shape is None or isinstance(shape, UnsetType):
        return shape
    where = "session.audio.output.reference_voice.audio"
    if len(shape.audio) > 4 * (limits.max_reference_voice_bytes // 3 + 1):
        raise over_limit(where, limits.max_reference_voice_bytes, "bytes")
    try:
        pcm = pybase64.b64decode(shape.audio, validate=True)
    except ValueError as error:
        raise WireRefusal("invalid_audio", where) from error
    if len(pcm) > limits.max_reference_voice_bytes:
        raise over_limit(where, limits.max_reference_voice_bytes, "bytes")
    if not pcm or len(pcm) % 2:
        raise invalid(where, "it is not whole samples of PCM16")
    return ReferenceVoice(pcm, shape.rate)


def _overlap(shape: shapes.OverlapShape | None) -> OverlapPatch | UnsetType:
    if shape is None:
        return UNSET
    words = None if shape.acknowledgements is None else tuple(shape.acknowledgements)
    return OverlapPatch(shape.policy, words, shape.short_ack_ms)


def _turn_detection(shape: shapes.ServerVadShape | shapes.SemanticVadShape | None) -> TurnDetection | None:
    if shape is None:
        return None
    values = {name: value for name in shape.__struct_fields__ if (value := getattr(shape, name)) is not None}
    return ServerVad(**values) if isinstance(shape, shapes.ServerVadShape) else SemanticVad(**values)


def _session_tokens(tokens: int | str | None, limits: WireLimits) -> int | UnsetType | None:
    if tokens is None:
        return UNSET
    return token_bound(tokens, limits, "session.max_output_tokens")


def _extras(session: shapes.SessionShape, limits: WireLimits) -> dict[str, Any] | UnsetType:
    extras: dict[str, Any] = {}
    for name in ("tracing", "prompt", "reasoning"):
        value = getattr(session, name)
        if value is not UNSET:
            extras[name] = plain(value, limits, f"session.{name}")
    for name in ("truncation", "parallel_tool_calls"):
        value = getattr(session, name)
        if value is not None:
            extras[name] = plain(value, limits, f"session.{name}")
    return extras or UNSET


def given(value: T | None) -> T | UnsetType:
    return UNSET if value is None else value


def refuse_beta(shape: Struct, fields: tuple[str, ...], where: str) -> None:
    for name in fields:
        if getattr(shape, name) is not UNSET:
            raise WireRefusal("beta_api_unsupported", f"{where}.{name}")


def limited(text: str | None, limit_chars: int, param: str) -> str | None:
    if text is not None and len(text) > limit_chars:
        raise over_limit(param, limit_chars, "characters")
    return text


def audio_format(shape: shapes.Format | None, param: str) -> AudioFormat | None:
    if shape is None:
        return None
    known = _FORMATS.get(shape.type)
    if known is None:
        raise unsupported(f"{param}.type", "audio/pcm, audio/pcmu and audio/pcma are offered")
    encoding, rates = known
    rate = rates[0] if shape.rate is None else shape.rate
    if rate not in rates:
        raise unsupported(f"{param}.rate", f"{shape.type} is offered at {' or '.join(map(str, rates))} Hz")
    return AudioFormat(encoding, rate)  # type: ignore[arg-type]


def modalities(names: list[Any] | None, param: str) -> tuple[Modality, ...] | None:
    """["audio"] or ["text"]. Both together mean audio, whose transcript always comes with it."""
    if names is None:
        return None
    if not names or len(set(names)) != len(names):
        raise invalid(param, 'it must be ["audio"] or ["text"]')
    return ("audio",) if "audio" in names else ("text",)


def voice(shape: str | shapes.VoiceId | None) -> str | None:
    return shape.id if isinstance(shape, shapes.VoiceId) else shape


def token_bound(tokens: int | str, limits: WireLimits, param: str) -> int | None:
    if isinstance(tokens, str):
        return None
    if tokens > limits.max_output_tokens:
        raise over_limit(param, limits.max_output_tokens, "tokens")
    return tokens


def tools(shapes_: list[shapes.ToolShape] | None, limits: WireLimits, param: str) -> tuple[Tool, ...] | None:
    if shapes_ is None:
        return None
    if len(shapes_) > limits.max_tools:
        raise over_limit(param, limits.max_tools, "tools")
    made: dict[str, Tool] = {}
    for index, shape in enumerate(shapes_):
        where = f"{param}[{index}]"
        if shape.type != "function":
            raise unsupported(f"{where}.type", "only functions are offered")
        if isinstance(shape.name, UnsetType):
            raise WireRefusal("missing_field", f"{where}.name")
        if shape.name in made:
            raise invalid(f"{where}.name", "two tools have this name")
        made[shape.name] = Tool(shape.name, shape.description or "", plain(shape.parameters or {}, limits, f"{where}.parameters"))
    return tuple(made.values())


def tool_choice(shape: str | shapes.ToolChoiceShape | None, param: str) -> str | None:
    """auto, none, required, or the one function's name."""
    if shape is None or isinstance(shape, str):
        return shape
    if shape.type != "function":
        raise unsupported(f"{param}.type", "only functions are offered")
    if isinstance(shape.name, UnsetType):
        raise WireRefusal("missing_field", f"{param}.name")
    if shape.name in TOOL_CHOICES:
        raise unsupported(f"{param}.name", "a function of this name cannot be chosen by name")
    return shape.name


def plain(value: Any, limits: WireLimits, param: str) -> Any:
    """Free-form JSON as builtins, proven to be small, shallow, and writable again."""
    builtins = msgspec.to_builtins(value)
    if _deeper_than(builtins, limits.max_json_depth_levels):
        raise WireRefusal("nesting_too_deep", param)
    try:
        # The journal and the checkpoint are msgpack, whose integers have 64 bits.
        msgspec.msgpack.encode(builtins)
        size = len(msgspec.json.encode(builtins))
    except (OverflowError, msgspec.MsgspecError) as error:
        raise invalid(param, "it holds a number out of range") from error
    if size > limits.max_tool_bytes:
        raise over_limit(param, limits.max_tool_bytes, "bytes")
    return builtins


def _deeper_than(value: Any, levels: int) -> bool:
    layer = [value]
    for _ in range(levels):
        layer = [child for node in layer if isinstance(node, dict | list) for child in (node.values() if isinstance(node, dict) else node)]
    return any(isinstance(node, dict | list) for node in layer)
