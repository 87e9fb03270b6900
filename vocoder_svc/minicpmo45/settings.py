"""Settings of this engine, read from the environment with the prefix `PARLEY_VOCODER_`; checkpoint, device and dtype are common to all
services."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from minicpmo45.memory_plan import VOICE_BYTES
from minicpmo45.recordings import LONGEST_S
from minicpmo45.slots import AUTO, SlotCount, automatic_kernels


class MiniCpmVocoderSettings(BaseSettings):
    """Every limit has its unit in its name."""

    model_config = SettingsConfigDict(env_prefix="PARLEY_VOCODER_", extra="ignore", populate_by_name=True)

    checkpoint: Path = Field(validation_alias="PARLEY_CHECKPOINT")
    """Folder of the released checkpoint."""
    device: str = Field("cpu", validation_alias="PARLEY_DEVICE", pattern=r"^(cpu|cuda(:\d+)?)$")
    trim: Literal["newest", "reference", "reference_packed"] = "newest"
    """Which frames are attended to: the prompt and the newest 100 (`newest`), or what minicpmo_utils 1.0.7 (`reference`) or
    stepaudio2_minicpmo 0.1.1 (`reference_packed`) keep."""
    kernels: Literal["plain", "fused"] = AUTO
    """Torch's operations, or fused ones, which need Triton, a GPU (or Triton's interpreter) and the trim `newest`. `auto`: fused where a
    GPU and that trim are."""
    flow_dtype: Literal["float32", "bfloat16", "float16"] = AUTO
    """Of the flow's weights and products. `auto`: float16 with fused kernels on CUDA (its mels are as near as TF32's), else float32."""
    hift_dtype: Literal["float32", "float16", "bfloat16"] = AUTO
    """Of what the convolutions of a fused HiFT multiply (float32: rounded to TF32); all else in HiFT is fp32, and so is a plain one.
    `auto`: as the flow's."""
    flow_tf32: bool = False
    """Products of a fused float32 flow are rounded to TF32."""
    flow_chained: bool = False
    """Fused kernels of the flow start up while the one before them ends; Hopper GPUs do that."""
    plain: bool = False
    """No CUDA graphs: the oracle of what is faster. The trims of the references have none anyway."""
    cache_dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of keys and values. auto: float32 on the CPU, elsewhere float16 where the flow is, else bfloat16."""

    slots: SlotCount = Field(0, ge=0, le=1024)
    """Most sessions at once. 0 or `auto`: as many as the plan of the card says (on the CPU, and with a trim of the references, 4)."""
    batch: int = Field(64, ge=1, le=1024)
    """Most sessions in one step. A step takes about as long as it has rows: in two halves the first half is heard earlier."""
    ahead: bool | None = None
    """Sound of a step is coded and sent while the device makes the next one's, if there is one at once; None: on CUDA. What is heard is the
    same."""
    flow_steps: int = Field(5, ge=3, le=10)
    """Euler steps a chunk takes; caches grow with it."""
    filler: Literal["silence", "prompt"] = "silence"
    """Look-ahead of a prompt's end: the silence code, or the prompt's own first codes."""
    generation: Literal["checkpoint", "first", "causal"] = "checkpoint"
    """Which HiFT speaks, where a checkpoint has both: the one in `hift.pt`, or the named one."""
    pad_first: bool = True
    """Fill the first sound of a turn with silence in front to a whole second, as the reference does: the generator keeps its last 160 ms
    until the next unit, for which a player would have to wait in mid-word."""
    seed: int = Field(0, ge=0)
    """Of the noise, drawn once for all sessions."""
    voices: Path | None = None
    """Folder of named voices, `NAME.wav`, beside those of the checkpoint."""
    voices_bytes: int = Field(VOICE_BYTES, ge=1)
    """Keys and values of all voices together."""
    voice_s: float = Field(LONGEST_S, gt=0, le=60)
    """Longest recording of a voice."""
    voice_wait_s: float = Field(30.0, ge=0)
    """How long a voice waits for room before it is refused."""
    onnx_threads: int = Field(1, ge=1)
    waiting_codes: int = Field(4096, ge=1)
    """Most codes of one response that wait, 3 of silence in front of it among them."""

    @property
    def looks_ahead(self) -> bool:
        """`ahead`, decided."""
        return self.device != "cpu" if self.ahead is None else self.ahead

    @field_validator("kernels", mode="before")
    @classmethod
    def _kernels(cls, value: object, info: ValidationInfo) -> object:
        on_gpu = automatic_kernels(info.data.get("device", "cpu")) if info.data.get("trim") == "newest" else "plain"
        return on_gpu if value == "auto" else value

    @field_validator("flow_dtype", "hift_dtype", mode="before")
    @classmethod
    def _dtype(cls, value: object, info: ValidationInfo) -> object:
        halves = info.data.get("kernels") == "fused" and info.data.get("device", "cpu") != "cpu"
        return ("float16" if halves else "float32") if value == "auto" else value

    @model_validator(mode="after")
    def _fused_where_it_runs(self) -> Self:
        fused = self.kernels == "fused"
        if fused and self.trim != "newest":
            raise ValueError("kernels: fused ones have the trim `newest` alone")
        if fused and self.device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
            raise ValueError("kernels: fused ones run on a GPU, or with TRITON_INTERPRET=1")
        if self.hift_dtype != "float32" and not fused:
            raise ValueError("hift_dtype: is of fused kernels alone")
        if self.flow_tf32 and not (fused and self.flow_dtype == "float32"):
            raise ValueError("flow_tf32: is of fused kernels in float32 alone")
        if self.flow_chained and not (fused and self.device != "cpu"):
            raise ValueError("flow_chained: is of fused kernels on a GPU alone")
        return self
