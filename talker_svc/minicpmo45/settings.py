"""Settings of this engine, read from the environment with the prefix `PARLEY_TALKER_`, and what a session may configure."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

import msgspec
from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from minicpmo45.config import CODE_RATE
from minicpmo45.memory_plan import TALKER_POSITIONS
from minicpmo45.slots import AUTO, SlotCount, automatic_kernels
from stage_kit import InvalidConfig

TEMPERATURES = (0.05, 2.0)
PENALTIES = (1.0, 2.0)
BURST = 5
"""Codes of a step on CUDA: a unit of 25 is five steps."""
_SEED_BITS = 63


class MiniCpmTalkerSettings(BaseSettings):
    """Every limit has its unit in its name."""

    model_config = SettingsConfigDict(env_prefix="PARLEY_TALKER_", extra="ignore", populate_by_name=True)

    checkpoint: Path = Field(validation_alias="PARLEY_CHECKPOINT")
    """Folder of the released checkpoint."""
    device: str = Field("cpu", validation_alias="PARLEY_DEVICE", pattern=r"^(cpu|cuda(:\d+)?)$")
    dtype: Literal["auto", "float32", "bfloat16"] = Field("auto", validation_alias="PARLEY_DTYPE")
    """auto: float32 on the CPU, bfloat16 elsewhere."""
    plain: bool = False
    """No CUDA graphs: the oracle of what is faster."""
    kernels: Literal["plain", "fused"] = AUTO
    """fused: Triton kernels between the matrix products, on CUDA. `auto`: there."""
    burst: int | None = Field(None, ge=1, le=CODE_RATE + 1)
    """Codes of a session in one step, without a word from the device in between; None: 5 on CUDA, 1 on the CPU, which would gain nothing.
    What comes meanwhile, a cancel or another session, waits for the step to end."""
    ahead: bool | None = None
    """A step is given to the device before the codes of the one before are read; None: on CUDA. No code changes with it."""
    slots: SlotCount = Field(0, ge=0, le=1024)
    """Most sessions at once; all of them may be in one step. 0 or `auto`: as many as the plan of the card says (on the CPU, 4)."""
    positions: int = Field(TALKER_POSITIONS, ge=256)
    """Most tokens of a turn that are held; before it would hold more, whole units leave."""
    window_units: int = Field(20, ge=1)
    """Units, of a second each, that stay when units leave."""
    tail_codes: int = Field(104, ge=CODE_RATE, le=200)
    """Most codes of a turn's last unit."""
    min_piece_codes: int = Field(5, ge=1, le=CODE_RATE)
    """Of a turn's last unit: once a second piece of codes has begun, pieces hold at least so many."""
    thought_tokens: int = Field(64, ge=1)
    """Most tokens of one unit."""

    @field_validator("kernels", mode="before")
    @classmethod
    def _kernels(cls, value: object, info: ValidationInfo) -> object:
        return automatic_kernels(info.data.get("device", "cpu")) if value == "auto" else value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.thought_tokens + self.tail_codes + 2 > self.positions:
            raise ValueError("positions: too few for thought_tokens and tail_codes of one unit")
        return self

    @property
    def codes_per_step(self) -> int:
        """`burst`, decided."""
        return self.burst or (1 if self.device == "cpu" else BURST)

    @property
    def looks_ahead(self) -> bool:
        """`ahead`, decided."""
        return self.device != "cpu" if self.ahead is None else self.ahead


class SessionConfig(msgspec.Struct, frozen=True):
    """Configuration of a session. `seed` None: derived from the session's name."""

    temperature: float = 0.8
    repetition_penalty: float = 1.05
    greedy: bool = False
    seed: int | None = None


def session_config(config: dict[str, Any]) -> SessionConfig:
    """Accepts {"temperature": 0.05 to 2, "repetition_penalty": 1 to 2, "greedy": bool, "seed": 63 bits}. Raises InvalidConfig."""
    for name in config:
        if name not in SessionConfig.__struct_fields__:
            raise InvalidConfig(name, "unknown field")
    for name, (low, high) in (("temperature", TEMPERATURES), ("repetition_penalty", PENALTIES)):
        value = config.get(name, low)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise InvalidConfig(name, f"must be a number from {low} to {high}")
    if not isinstance(config.get("greedy", False), bool):
        raise InvalidConfig("greedy", "must be true or false")
    seed = config.get("seed")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << _SEED_BITS):
        raise InvalidConfig("seed", f"must be a whole number of at most {_SEED_BITS} bits")
    return msgspec.convert(config, SessionConfig)
