"""Settings of the vocoder, read from the environment with the prefix `PARLEY_VOCODER_`; the cache folder is `PARLEY_MODELS`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class VocoderSettings(BaseSettings):
    """Every limit has its unit in its name."""

    model_config = SettingsConfigDict(env_prefix="PARLEY_VOCODER_", extra="ignore")

    slots: int = Field(32, ge=1)
    """Most sessions at once."""
    first_chunk_frames: int = Field(24, ge=1)
    """Latent frames decoded for the first sound of a response; small, so that it comes early."""
    chunk_frames: int = Field(48, ge=1)
    sentence_pause_ms: int = Field(120, ge=0, le=2000)
    """Silence after a sentence, before more of the response follows."""
    ahead_ms: int = Field(8000, ge=1000)
    """Sound made beyond what can have been heard; more would be wasted on the next interruption."""
    waiting_frames: int = Field(65536, ge=1)
    """Most latent frames of one response waiting to be decoded."""
    models: Path | None = Field(None, validation_alias="PARLEY_MODELS")
