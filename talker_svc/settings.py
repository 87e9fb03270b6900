"""Settings of the talker, read from the environment with the prefix `PARLEY_TALKER_`; the cache folder is `PARLEY_MODELS`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from talker_svc.clauses import Limits


class TalkerSettings(BaseSettings):
    """Every limit has its unit in its name."""

    model_config = SettingsConfigDict(env_prefix="PARLEY_TALKER_", extra="ignore")

    slots: int = Field(32, ge=1)
    """Most sessions at once."""
    first_clause_words: int = Field(8, ge=1)
    soft_clause_words: int = Field(8, ge=1)
    clause_words: int = Field(24, ge=1)
    clause_chars: int = Field(300, ge=16)
    part_chars: int = Field(240, ge=40)
    """Most characters, numbers in words, that are spoken in one step; the time of a step grows with their square."""
    chunk_frames: int = Field(256, ge=1, le=266)
    """Most latent frames of one output; 266 of them are 200 KiB."""
    noise: float = Field(0.667, ge=0.0, le=2.0)
    """Deviation of the latents' noise."""
    duration_noise: float = Field(0.8, ge=0.0, le=2.0)
    """Deviation of the durations' noise."""
    seed: str = ""
    """Set: every response sounds as if its id were this one."""
    models: Path | None = Field(None, validation_alias="PARLEY_MODELS")

    def limits(self) -> Limits:
        """The clause limits."""
        return Limits(
            first_words=self.first_clause_words, soft_words=self.soft_clause_words, max_words=self.clause_words, max_chars=self.clause_chars
        )
