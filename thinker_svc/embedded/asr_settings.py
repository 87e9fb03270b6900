"""Limits of stage `asr` that an operator sets."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class AsrSettings(BaseSettings):
    """Read from the environment with prefix `PARLEY_ASR_`. Times in milliseconds of audio, unless the name says wall."""

    model_config = SettingsConfigDict(env_prefix="PARLEY_ASR_", frozen=True)

    slots: int = Field(16, ge=1)
    partial_interval_ms: int = Field(500, ge=100)
    """New audio before the next partial."""
    partial_share: float = Field(0.5, gt=0, le=1)
    """Most of the recognizer's time that the partials of all sessions take: commits find it free."""
    piece_ms: int = Field(15_000, ge=1000)
    """Longest audio that is decoded at once; longer is cut at its quietest point. Of an utterance that grows longer than this the first
    piece is settled: its text is kept, its audio let go."""
    hold_ms: int = Field(30_000, ge=1000)
    """Audio kept while nobody speaks."""
    hold_most_ms: int = Field(330_000, ge=1000)
    """Most audio of a session held in any case (21 MB): the oldest is dropped beyond it."""
    judged_wall_ms: int = Field(5_000, ge=0)
    """Audio is settled or let go only this long after it came: by then the turn stage has spoken."""
    commit_wait_wall_ms: int = Field(1000, ge=0)
    """Longest wait for the audio of a committed span."""
    span_tolerance_ms: int = Field(64, ge=0)
    """An early result serves a commit whose ends differ by no more."""
    least_ms: int = Field(100, ge=100)
    """Shorter audio has no words."""
    silence_rms: float = Field(0.0015, ge=0)
    """Audio whose loudest 30 ms stay below this root mean square (full scale 1) has no words."""
    models: Path | None = None
    """Folder of the models; the common cache when unset."""
