"""Limits of stage `llm` that an operator sets, and what a session may set."""

from __future__ import annotations

from pathlib import Path

import msgspec
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class LlmSettings(BaseSettings):
    """Read from the environment with prefix `PARLEY_LLM_`."""

    model_config = SettingsConfigDict(env_prefix="PARLEY_LLM_", frozen=True)

    slots: int = Field(16, ge=1)
    """Most sessions at once."""
    workers: int = Field(2, ge=1)
    """Answers that are generated at the same time; more wait in order of arrival."""
    worker_threads: int = Field(1, ge=1)
    """Processor threads of one answer."""
    max_tokens: int = Field(160, ge=1)
    """Most tokens of one answer, whatever the prompt asks for."""
    context_tokens: int = Field(2048, ge=256)
    """Prompt and answer together; the oldest turns are left out beyond it."""
    history_tokens: int = Field(512, ge=0)
    """The oldest turns are left out beyond it, too: the whole prompt is read anew for each answer, and on one CPU core 500 tokens take
    about a second, 2000 nine. The newest turn stays whole; the instructions do not count."""
    max_sentences: int = Field(2, ge=0)
    """An answer ends after so many sentences; 0: never for that reason."""
    repetition_penalty: float = Field(1.1, gt=0)
    """Divides the score of tokens that were generated before; 1: none."""
    models: Path | None = None
    """Folder of the models; the common cache when unset."""


class LlmConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stage configuration of a session. What is unset is the operator's setting; nothing can exceed it."""

    max_tokens: int | None = None
    max_sentences: int | None = None
