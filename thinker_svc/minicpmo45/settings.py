"""Settings of this engine, read from the environment with the prefix `PARLEY_THINKER_`; checkpoint, device and dtype are common to all
services."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from minicpmo45.recordings import LONGEST_S
from minicpmo45.slots import AUTO, SlotCount, automatic_kernels


class MiniCpmThinkerSettings(BaseSettings):
    """Every limit has its unit in its name."""

    model_config = SettingsConfigDict(env_prefix="PARLEY_THINKER_", extra="ignore", populate_by_name=True)

    checkpoint: Path = Field(validation_alias="PARLEY_CHECKPOINT")
    """Folder of the released checkpoint."""
    device: str = Field("cpu", validation_alias="PARLEY_DEVICE", pattern=r"^(cpu|cuda(:\d+)?)$")
    dtype: Literal["auto", "float32", "bfloat16"] = Field("auto", validation_alias="PARLEY_DTYPE")
    """Of weights. auto: float32 on the CPU, bfloat16 elsewhere."""
    kv_dtype: Literal["auto", "float32", "bfloat16", "fp8"] = "auto"
    """Of keys and values of the language model. auto: as `dtype`. fp8: e4m3 with a scale a token and head; half the bytes of bfloat16."""
    weights_dtype: Literal["auto", "fp8"] = "auto"
    """Of the matrices of the language model's blocks. auto: as `dtype`. fp8: e4m3 with a scale a row; half the bytes of bfloat16. What they
    are multiplied with is rounded to e4m3, too, in steps of many tokens."""
    plain: bool = False
    """No CUDA graphs: the oracle of what is faster."""
    kernels: Literal["plain", "fused"] = AUTO
    """Of the language model and the encoders. plain: those of torch. fused: our own, for CUDA; a whole step is one graph. `auto`: fused on
    CUDA."""
    draft: bool = AUTO
    """A unit's first token is guessed, so that one that speaks takes a step less. Its tokens are the same. `auto`: with fused kernels."""
    warm_tokens: int = Field(2560, ge=0)
    """Contexts up to which graphs are captured at start; what is longer is when it is first met, which takes a fraction of a second."""

    slots: SlotCount = Field(0, ge=0, le=1024)
    """Most sessions at once; all of them may be in one step. 0 or `auto`: as many as the plan of the card says (on the CPU, 4)."""
    window_tokens: int = Field(8192, ge=512)
    """Tokens of a session that fit into its pages, prefix included; all of them are set aside when it opens."""
    unit_frames: int = Field(4, ge=0)
    """Most camera frames of a unit."""
    input_s: float = Field(120.0, ge=2)
    """Most sound of a session that may wait to be heard; more ends the session."""
    voices: Path | None = None
    """Folder of named voices, `NAME.wav`, beside those of the checkpoint."""
    voice_s: float = Field(LONGEST_S, gt=0, le=60)
    """Longest recording of a voice."""
    picture_threads: int = Field(2, ge=1)
    """Threads that decode camera frames."""
    script: Path | None = None
    """A file of decisions that replace what is drawn; for benchmarks and tests. See `script.py`."""

    @field_validator("kernels", mode="before")
    @classmethod
    def _kernels(cls, value: object, info: ValidationInfo) -> object:
        return automatic_kernels(info.data.get("device", "cpu")) if value == "auto" else value

    @field_validator("draft", mode="before")
    @classmethod
    def _draft(cls, value: object, info: ValidationInfo) -> object:
        return info.data.get("kernels") == "fused" if value == "auto" else value
