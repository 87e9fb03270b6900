"""What a session is set to: the domain's own form of a Realtime session, free of wire spelling."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from .items import Item
from .quiet import Quiet

Encoding = Literal["pcm", "pcmu", "pcma"]
Modality = Literal["audio", "text"]


_SILENCE = {"pcm": b"\x00", "pcmu": b"\xff", "pcma": b"\xd5"}


class AudioFormat(Quiet, frozen=True):
    """Coding and rate of client audio: mono PCM16 little-endian at 24000 or 16000 Hz, or G.711 at 8000 Hz."""

    encoding: Encoding = "pcm"
    rate: int = 24_000

    @property
    def sample_bytes(self) -> int:
        return 2 if self.encoding == "pcm" else 1

    def milliseconds(self, samples: int) -> int:
        return samples * 1000 // self.rate

    def seconds(self, data: bytes) -> float:
        return len(data) / (self.sample_bytes * self.rate)

    def silence(self, samples: int) -> bytes:
        return _SILENCE[self.encoding] * (samples * self.sample_bytes)


class ServerVad(Quiet, frozen=True, tag="server_vad"):
    """Turn detection by silence. Times in milliseconds; threshold is a probability."""

    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    idle_timeout_ms: int | None = None
    create_response: bool = True
    interrupt_response: bool = True


class SemanticVad(Quiet, frozen=True, tag="semantic_vad"):
    """Turn detection by a model that scores each pause."""

    eagerness: Literal["low", "medium", "high", "auto"] = "auto"
    create_response: bool = True
    interrupt_response: bool = True


TurnDetection = ServerVad | SemanticVad


class Tool(Quiet, frozen=True):
    name: str
    description: str = ""
    parameters: dict[str, Any] = {}


class Transcription(Quiet, frozen=True):
    """The client wants user speech written out. The model name is echoed, never selected by it."""

    model: str = ""
    language: str | None = None
    prompt: str | None = None


class Overlap(Quiet, frozen=True):
    """What happens when the user speaks while a native model speaks: see graph.OverlapDefaults."""

    policy: Literal["interrupt", "ignore", "model"] = "interrupt"
    acknowledgements: tuple[str, ...] = ()
    short_ack_ms: int = 700


class OverlapPatch(Quiet, frozen=True):
    """What None leaves as it is."""

    policy: Literal["interrupt", "ignore", "model"] | None = None
    acknowledgements: tuple[str, ...] | None = None
    short_ack_ms: int | None = None

    def over(self, held: Overlap) -> Overlap:
        return Overlap(
            self.policy or held.policy,
            held.acknowledgements if self.acknowledgements is None else self.acknowledgements,
            held.short_ack_ms if self.short_ack_ms is None else self.short_ack_ms,
        )


class ReferenceVoice(Quiet, frozen=True):
    """A recording to speak like: PCM16 mono. Told to clients by its length alone."""

    pcm: bytes
    rate: int = 16_000
    length_ms: int = 0

    @property
    def told(self) -> ReferenceVoice:
        return ReferenceVoice(b"", self.rate, len(self.pcm) * 500 // self.rate) if self.pcm else self


class SessionConfig(Quiet, frozen=True):
    """The full effective configuration; replaced whole by an accepted update."""

    model: str
    instructions: str = ""
    output_modalities: tuple[Modality, ...] = ("audio",)
    input_format: AudioFormat = AudioFormat()
    output_format: AudioFormat = AudioFormat()
    turn_detection: TurnDetection | None = ServerVad()
    transcription: Transcription | None = None
    noise_reduction: str | None = None
    voice: str = "default"
    speed: float = 1.0
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"
    max_output_tokens: int | None = None
    """None means no bound but the stage's own ("inf" on the wire)."""
    include: tuple[str, ...] = ()
    extras: dict[str, Any] = {}
    """Accepted and echoed without effect: tracing, truncation, prompt."""
    overlap: Overlap | None = None
    """None in a conversation with a dialog."""
    model_options: dict[str, Any] = {}
    """By the names of the profile's mappings; stages judge the values."""
    reference_voice: ReferenceVoice | None = None

    @property
    def told(self) -> SessionConfig:
        """As clients and the journal get it."""
        voice = self.reference_voice
        return self if voice is None else msgspec.structs.replace(self, reference_voice=voice.told)


class SessionPatch(Quiet, frozen=True):
    """A session.update in domain terms: an unset field is untouched, None clears where the field may be null."""

    model: str | UnsetType = UNSET
    instructions: str | UnsetType = UNSET
    output_modalities: tuple[Modality, ...] | UnsetType = UNSET
    input_format: AudioFormat | UnsetType = UNSET
    output_format: AudioFormat | UnsetType = UNSET
    turn_detection: TurnDetection | UnsetType | None = UNSET
    transcription: Transcription | UnsetType | None = UNSET
    noise_reduction: str | UnsetType | None = UNSET
    voice: str | UnsetType = UNSET
    speed: float | UnsetType = UNSET
    tools: tuple[Tool, ...] | UnsetType = UNSET
    tool_choice: str | UnsetType = UNSET
    max_output_tokens: int | UnsetType | None = UNSET
    include: tuple[str, ...] | UnsetType = UNSET
    extras: dict[str, Any] | UnsetType = UNSET
    """Merged key by key; a None value removes the key."""
    overlap: OverlapPatch | UnsetType = UNSET
    model_options: dict[str, Any] | UnsetType = UNSET
    """Merged as extras."""
    reference_voice: ReferenceVoice | UnsetType | None = UNSET


class ResponseOptions(Quiet, frozen=True):
    """Options of one response.create: they apply to that response only; None means the session's."""

    instructions: str | None = None
    output_modalities: tuple[Modality, ...] | None = None
    voice: str | None = None
    max_output_tokens: int | None = None
    tools: tuple[Tool, ...] | None = None
    tool_choice: str | None = None
    metadata: dict[str, str] | None = None
    out_of_band: bool = False
    """conversation: "none": the reply enters no history."""
    input: tuple[Item, ...] | None = None
    """Items that replace the conversation as context."""
