"""How many sessions a service lends: as many as the plan of its card says, or a number that the plan allows."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Annotated, Any, Literal, Protocol, Self, TypeVar

from pydantic import BeforeValidator, Field
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from minicpmo45.config import Config
from minicpmo45.memory_plan import STAGES, TALKER_POSITIONS, VOICE_BYTES, DType, Dtypes, MemoryPlan, PlanError, Stage, memory_plan

UNPLANNED_SESSIONS = 4
"""Where there is no plan: on the CPU, where one session of a model of released size is more than real time bears."""
MOST_PLANNED = 256
"""Beyond it a card's arithmetic gives out before its memory. A number that somebody names may be larger."""

AUTO: Any = "auto"
"""Default of a setting that is decided by those before it."""
SlotCount = Annotated[int, BeforeValidator(lambda value: 0 if value == "auto" else value)]
"""Sessions; 0 or `auto`: as many as the plan says."""
_ELEMENTS: dict[str, DType] = {"auto": "bf16", "bfloat16": "bf16", "float16": "bf16", "float32": "fp32", "fp8": "fp8"}


def _listed(value: Any) -> Any:
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


class PlanSettings(BaseSettings):
    """What the plan of a card depends on. Every service reads all of it, so that all compute the same: give those of one card the same."""

    model_config = SettingsConfigDict(env_prefix="PARLEY_", extra="ignore", populate_by_name=True)

    stages_on_card: Annotated[tuple[Stage, ...], NoDecode, BeforeValidator(_listed)] = STAGES
    """Stages that share the card, with commas between."""
    dtype: Literal["auto", "float32", "bfloat16"] = Field("auto", validation_alias="PARLEY_DTYPE")
    kv_dtype: Literal["auto", "float32", "bfloat16", "fp8"] = Field("auto", validation_alias="PARLEY_THINKER_KV_DTYPE")
    weights_dtype: Literal["auto", "fp8"] = Field("auto", validation_alias="PARLEY_THINKER_WEIGHTS_DTYPE")
    window_tokens: int = Field(8192, ge=512, validation_alias="PARLEY_THINKER_WINDOW_TOKENS")
    positions: int = Field(TALKER_POSITIONS, ge=256, validation_alias="PARLEY_TALKER_POSITIONS")
    flow_steps: int = Field(5, ge=3, le=10, validation_alias="PARLEY_VOCODER_FLOW_STEPS")
    flow_dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field("auto", validation_alias="PARLEY_VOCODER_FLOW_DTYPE")
    vocoder_kernels: Literal["auto", "plain", "fused"] = Field("auto", validation_alias="PARLEY_VOCODER_KERNELS")
    """Decides what an automatic flow is."""
    cache_dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field("auto", validation_alias="PARLEY_VOCODER_CACHE_DTYPE")
    voices_bytes: int = Field(VOICE_BYTES, ge=1, validation_alias="PARLEY_VOCODER_VOICES_BYTES")

    @classmethod
    def of(cls, stage: Stage, settings: BaseSettings) -> Self:
        """Those of the environment, with what the engine of this stage was itself set to."""
        own = f"PARLEY_{stage.upper()}_"
        aliases = {name: str(field.validation_alias) for name, field in cls.model_fields.items()}
        names = [name for name, alias in aliases.items() if (alias.startswith(own) or alias == "PARLEY_DTYPE") and hasattr(settings, name)]
        return cls().model_copy(update={name: getattr(settings, name) for name in names})

    def plan(self, card_bytes: int, config: Config, at_most: int) -> MemoryPlan:
        """See `memory_plan`. Raises PlanError."""
        plain_flow = self.flow_dtype == "auto" and self.vocoder_kernels == "plain"
        weights, flow = _ELEMENTS[self.dtype], "fp32" if plain_flow else _ELEMENTS[self.flow_dtype]
        kv = weights if self.kv_dtype == "auto" else _ELEMENTS[self.kv_dtype]
        matrices = None if self.weights_dtype == "auto" else _ELEMENTS[self.weights_dtype]
        return memory_plan(
            card_bytes,
            self.stages_on_card,
            self.window_tokens,
            self.flow_steps,
            Dtypes(weights, kv, weights, weights, flow, _ELEMENTS[self.cache_dtype], matrices),
            config,
            prompt_frames=1,  # which voices fit is the vocoder's to say
            voice_bytes=self.voices_bytes,
            at_most=at_most,
            positions=self.positions,
        )


class _EngineSettings(Protocol):
    """What an engine's settings have."""

    slots: int
    device: str


S = TypeVar("S", bound=BaseSettings)


def automatic_kernels(device: str) -> Literal["plain", "fused"]:
    """Our own need CUDA, and Triton, which torch brings where it has CUDA."""
    return "fused" if device != "cpu" and find_spec("triton") is not None else "plain"


def card_bytes(device: str) -> int:
    """All memory of the card that the device names."""
    import torch

    return int(torch.cuda.mem_get_info(torch.device(device))[1])


def planned(
    stage: Stage, settings: S, config: Config, *, has_plan: bool = True, measure: Callable[[str], int] = card_bytes
) -> tuple[S, dict[str, Any]]:
    """The settings with their number of slots decided, and what is to be logged of it.

    has_plan: False for a manner of working that `memory_plan` does not know. Raises PlanError: `slots` for a number above the plan,
    `stages_on_card` for one without this stage, `card_bytes` when not one session fits.
    """
    asked, device = _asked(settings)
    if device == "cpu" or not has_plan:
        slots = asked or UNPLANNED_SESSIONS
        return settings.model_copy(update={"slots": slots}), {"stage": stage, "sessions": slots, "device": device, "planned": False}
    shared = PlanSettings.of(stage, settings)
    if stage not in shared.stages_on_card:
        raise PlanError("stages_on_card", f"{stage} is not among {', '.join(shared.stages_on_card)}")
    plan = shared.plan(measure(device), config, asked or MOST_PLANNED)
    if asked > plan.sessions:
        beside = ", ".join(shared.stages_on_card)
        raise PlanError("slots", f"{asked} are more than the {plan.sessions} sessions for which the card has memory (it holds {beside})")
    return settings.model_copy(update={"slots": plan.sessions}), _told(stage, device, plan)


def _asked(settings: BaseSettings) -> tuple[int, str]:
    own: _EngineSettings = settings  # type: ignore[assignment]
    return own.slots, own.device


def _told(stage: Stage, device: str, plan: MemoryPlan) -> dict[str, Any]:
    own = plan.stage(stage)
    return {
        "stage": stage,
        "sessions": plan.sessions,
        "device": device,
        "planned": True,
        "stages_on_card": [each.stage for each in plan.stages],
        "card_bytes": plan.card_bytes,
        "planned_bytes": plan.nbytes,
        "stage_bytes": own.nbytes,
        "once_bytes": {line.name: line.nbytes for line in own.lines if not line.each},
        "session_bytes": {line.name: line.nbytes for line in own.lines if line.each},
    }
