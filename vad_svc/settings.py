"""Limits of stage `turn` that an operator sets; a session's own wishes are in `config`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class TurnSettings(BaseSettings):
    """Read from the environment with prefix `PARLEY_TURN_`. Times in milliseconds of audio, unless the name says wall."""

    model_config = SettingsConfigDict(env_prefix="PARLEY_TURN_", frozen=True)

    slots: int = Field(16, ge=1)
    semantic: bool = True
    """Load Smart Turn and offer semantic_vad."""
    min_speech_ms: int = Field(96, ge=0, le=2000)
    """Speech shorter than this never starts a turn: a click does not barge in."""
    hysteresis: float = Field(0.15, ge=0, le=1)
    """Open speech goes on until the probability falls below threshold less this, or below half the threshold."""
    prefix_most_ms: int = Field(10_000, ge=0)
    """Largest prefix_padding_ms that a session may ask for; the recognizer keeps audio for longer than this."""
    silence_most_ms: int = Field(60_000, ge=0)
    """Largest silence_duration_ms that a session may ask for."""
    candidate_pause_ms: int = Field(128, ge=32, le=2000)
    """Silence after which a pause is announced."""
    score_silence_ms: int = Field(160, ge=32, le=2000)
    """Silence at which Smart Turn judges the pause, and the least silence that ends a turn by its judgement."""
    score_wall_ms: int = Field(1500, ge=1)
    """Longest wait for a score; a later one is not used and the pause ends by the fallback silence."""
    timeout_factor: float = Field(1.5, ge=1)
    timeout_wall_ms: int = Field(1000, ge=0)
    """Open speech ends when no audio came for timeout_factor x the required silence + this, by the wall clock."""
    frames_per_step: int = Field(8, ge=1)
    """Most frames of one session in one step: a burst of one session does not hold up the others."""
    max_pending_s: int = Field(360, ge=1)
    """Most audio of one session that waits for the detector, in seconds."""
    models: Path | None = None
    """Folder of the models; the common cache when unset."""
