"""Conversation items and responses as snapshots: immutable, shared freely between ledgers, events and checkpoints."""

from __future__ import annotations

from typing import Literal

from .quiet import Quiet

ItemKind = Literal["message", "function_call", "function_call_output"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["in_progress", "completed", "cancelled", "failed", "incomplete"]
PartKind = Literal["input_text", "input_audio", "input_image", "output_text", "output_audio"]


class Part(Quiet, frozen=True):
    """A piece of a message. Audio parts carry what was said as transcript (None: not known yet), never sound."""

    kind: PartKind
    text: str | None = None
    transcript: str | None = None
    audio_ms: int = 0
    """Length of the sound behind an audio part."""


class Item(Quiet, frozen=True):
    """One conversation item."""

    id: str
    kind: ItemKind = "message"
    role: Literal["system", "user", "assistant"] | None = None
    status: ItemStatus = "completed"
    content: tuple[Part, ...] = ()
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | None = None

    @property
    def text(self) -> str:
        """What a language model reads of a message."""
        return "".join(part.text or part.transcript or "" for part in self.content)


class Usage(Quiet, frozen=True):
    """Tokens of one response."""

    input_text: int = 0
    input_audio: int = 0
    output_text: int = 0
    output_audio: int = 0


class Response(Quiet, frozen=True):
    """A response as the client sees it at some moment."""

    id: str
    status: ResponseStatus = "in_progress"
    reason: Literal["turn_detected", "client_cancelled", "max_output_tokens", "content_filter"] | None = None
    error_code: str | None = None
    error_message: str | None = None
    output: tuple[Item, ...] = ()
    modalities: tuple[str, ...] = ("audio",)
    voice: str = "default"
    max_output_tokens: int | None = None
    metadata: dict[str, str] | None = None
    conversation_id: str | None = None
    usage: Usage | None = None
