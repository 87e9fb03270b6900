"""Kinds of node that the gateway knows: what they read and make, and which options they have."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from .formats import PROGRESS, SESSION
from .ports import STAGES, Ports

HttpUrl = Annotated[str, Field(pattern=r"^https?://")]
CHAT_OWN_FIELDS = ("model", "messages", "stream", "max_tokens", "temperature")


def refused(message: str) -> PydanticCustomError:
    return PydanticCustomError("profile", "{message}", {"message": message})


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class DialogOptions(Options):
    """The core's own dialog. Bounds are in characters (Unicode code points)."""

    system_prompt: str = ""
    """The instructions of a session whose client gives none."""
    max_history_chars: int = Field(default=65_536, ge=1)
    """Of everything that a prompt holds: the oldest messages are left out beyond it."""
    max_text_chars: int = Field(default=16_000, ge=1)
    """Of one transcript or one reply."""

    @model_validator(mode="after")
    def _one_text_fits(self) -> DialogOptions:
        if self.max_text_chars > self.max_history_chars:
            raise refused("max_text_chars exceeds max_history_chars")
        return self


class ChatOptions(Options):
    """Stage llm, answered by an outside OpenAI-compatible service."""

    base_url: HttpUrl
    model: str = Field(min_length=1)
    api_key_env: str = "OPENAI_API_KEY"
    """Name of the service's environment variable that holds the key, never the key."""
    max_tokens: int = Field(default=512, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    extra_body: dict[str, Any] = {}

    @field_validator("extra_body")
    @classmethod
    def _leaves_ours_alone(cls, extra_body: dict[str, Any]) -> dict[str, Any]:
        if taken := [field for field in extra_body if field in CHAT_OWN_FIELDS]:
            raise refused(f"extra_body cannot set {taken}")
        return extra_body


class AlignmentOptions(Options):
    """Stage aligner: which points of a reply's text are known in its sound."""

    method: Literal["sentence", "forced", "asr"] = "sentence"
    alignment_url: HttpUrl | None = None
    heard_asr_url: HttpUrl | None = None
    heard_asr_model: str | None = None
    timeout_ms: int = Field(default=2000, ge=1)

    @model_validator(mode="after")
    def _method_has_its_services(self) -> AlignmentOptions:
        forced, heard = self.method == "forced", self.heard_asr_url is not None
        if forced and self.alignment_url is None:
            raise refused("the forced method needs alignment_url")
        if not forced and self.alignment_url is not None:
            raise refused("alignment_url belongs to the forced method")
        if self.method == "asr" and not (heard and self.heard_asr_model):
            raise refused("the asr method needs heard_asr_url and heard_asr_model")
        if heard != (self.heard_asr_model is not None):
            raise refused("heard_asr_url and heard_asr_model go together")
        if heard and self.method == "sentence":
            raise refused("heard_asr_url belongs to the asr and forced methods")
        return self


class KindSpec(Struct, frozen=True):
    """A registered kind. `stage` serves it; empty for the core itself."""

    ports: Ports
    options: type[Options]
    stage: str = ""


KNOWN_KINDS: dict[str, KindSpec] = {
    "dialog": KindSpec(
        Ports(
            reads=("transcript", "decision", "text", "tool"),
            makes=("messages", SESSION),
            requires=(("transcript",), ("text",)),
            takes=("commit", "clear", "interrupt", "truncate", PROGRESS),
            opens_turns=True,
        ),
        DialogOptions,
    ),
    "openai_chat": KindSpec(STAGES["llm"], ChatOptions, stage="llm"),
    "alignment": KindSpec(STAGES["aligner"], AlignmentOptions, stage="aligner"),
}
