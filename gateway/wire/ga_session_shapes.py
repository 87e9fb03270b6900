"""The JSON shapes of a session that clients send. See ga_shapes for how strict they are."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from .ga_fields import Modalities, Name, Short, Tokens


class Format(Struct):
    """audio/pcm at 24000 Hz, or, as an extension, 16000 Hz; audio/pcmu and audio/pcma at 8000 Hz."""

    type: str
    rate: int | None = None


class ServerVadShape(Struct, tag_field="type", tag="server_vad"):
    threshold: Annotated[float, Meta(ge=0, le=1)] | None = None
    prefix_padding_ms: Annotated[int, Meta(ge=0, le=5_000)] | None = None
    silence_duration_ms: Annotated[int, Meta(ge=0, le=10_000)] | None = None
    idle_timeout_ms: Annotated[int, Meta(ge=100, le=600_000)] | None = None
    create_response: bool | None = None
    interrupt_response: bool | None = None


class SemanticVadShape(Struct, tag_field="type", tag="semantic_vad"):
    eagerness: Literal["low", "medium", "high", "auto"] | None = None
    create_response: bool | None = None
    interrupt_response: bool | None = None


class NoiseReduction(Struct):
    type: Literal["near_field", "far_field"]
    strength: Annotated[float, Meta(ge=0, le=1)] | None = None


class TranscriptionShape(Struct):
    model: Short | None = None
    language: Annotated[str, Meta(min_length=2, max_length=35)] | None = None
    prompt: Annotated[str, Meta(max_length=4096)] | None = None
    delay: Literal["minimal", "low", "medium", "high", "xhigh"] | None = None
    keywords: Annotated[list[Short], Meta(max_length=100)] | None = None
    languages: Annotated[list[Short], Meta(max_length=32)] | None = None


class AudioIn(Struct):
    format: Format | None = None
    noise_reduction: NoiseReduction | UnsetType | None = UNSET
    transcription: TranscriptionShape | UnsetType | None = UNSET
    turn_detection: ServerVadShape | SemanticVadShape | UnsetType | None = UNSET


class VoiceId(Struct):
    id: Annotated[str, Meta(min_length=1, max_length=64)]


class ReferenceVoiceShape(Struct):
    """Extension: base64 of PCM16 mono to speak like."""

    audio: str
    rate: Literal[8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000] = 16_000


class OverlapShape(Struct):
    """Extension: what happens when the user speaks while a native model speaks."""

    policy: Literal["interrupt", "ignore", "model"] | None = None
    acknowledgements: Annotated[list[Annotated[str, Meta(min_length=1, max_length=32)]], Meta(max_length=64)] | None = None
    short_ack_ms: Annotated[int, Meta(ge=0, le=5_000)] | None = None


class AudioOut(Struct):
    format: Format | None = None
    voice: Annotated[str, Meta(min_length=1, max_length=64)] | VoiceId | None = None
    speed: Annotated[float, Meta(ge=0.25, le=1.5)] | None = None
    reference_voice: ReferenceVoiceShape | UnsetType | None = UNSET


class AudioShape(Struct):
    input: AudioIn | None = None
    output: AudioOut | None = None


class ToolShape(Struct):
    type: str = "function"
    name: Name | UnsetType = UNSET
    description: Annotated[str, Meta(max_length=16_384)] | None = None
    parameters: dict[str, Any] | None = None


class ToolChoiceShape(Struct):
    type: str
    name: Name | UnsetType = UNSET


class TracingShape(Struct, omit_defaults=True):
    workflow_name: Short | None = None
    group_id: Short | None = None
    metadata: dict[str, Any] | None = None


class TokenLimits(Struct, omit_defaults=True):
    post_instructions: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None


class RetentionRatio(Struct, tag_field="type", tag="retention_ratio", omit_defaults=True):
    retention_ratio: Annotated[float, Meta(ge=0, le=1)]
    token_limits: TokenLimits | None = None


class PromptShape(Struct, omit_defaults=True):
    id: Short
    variables: dict[str, str] | None = None
    version: Short | None = None


class Reasoning(Struct, omit_defaults=True):
    effort: Literal["minimal", "low", "medium", "high", "xhigh"] | None = None


class SessionShape(Struct):
    """session.update's session: GA fields, and the beta fields by name only, so that they are refused and not ignored."""

    type: Literal["realtime", "transcription"] | UnsetType = UNSET
    model: Short | None = None
    instructions: str | None = None
    output_modalities: Modalities | None = None
    audio: AudioShape | None = None
    tools: list[ToolShape] | None = None
    tool_choice: Literal["auto", "none", "required"] | ToolChoiceShape | None = None
    max_output_tokens: Tokens | None = None
    include: list[Literal["item.input_audio_transcription.logprobs"]] | None = None
    parallel_tool_calls: bool | None = None
    tracing: Literal["auto"] | TracingShape | UnsetType | None = UNSET
    truncation: Literal["auto", "disabled"] | RetentionRatio | None = None
    prompt: PromptShape | UnsetType | None = UNSET
    reasoning: Reasoning | UnsetType | None = UNSET
    overlap: OverlapShape | None = None
    model_options: dict[str, Any] | None = None
    modalities: Raw | UnsetType = UNSET
    voice: Raw | UnsetType = UNSET
    speed: Raw | UnsetType = UNSET
    turn_detection: Raw | UnsetType = UNSET
    input_audio_format: Raw | UnsetType = UNSET
    output_audio_format: Raw | UnsetType = UNSET
    input_audio_transcription: Raw | UnsetType = UNSET
    input_audio_noise_reduction: Raw | UnsetType = UNSET
    max_response_output_tokens: Raw | UnsetType = UNSET
    temperature: Raw | UnsetType = UNSET


BETA_SESSION_FIELDS = (
    "modalities", "voice", "speed", "turn_detection", "input_audio_format", "output_audio_format", "input_audio_transcription",
    "input_audio_noise_reduction", "max_response_output_tokens", "temperature",
)  # fmt: skip
