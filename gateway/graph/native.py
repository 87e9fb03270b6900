"""What a profile says of a native model: its clock, what happens when both speak, and what its stages are told of a session."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

SessionField = Literal[
    "instructions", "voice", "reference_voice", "reference_rate_hz", "speed", "history", "heard_until_ms", "unit_log"
]  # fmt: skip
"""What a stage may be told of a session. `voice` is left out where it is "default" or a reference voice is given; `reference_voice` is
base64 of PCM16 mono at `reference_rate_hz`. For a stage that is placed anew: `unit_log` is what it noted of its latest units (base64 of the
msgpack array [start_ms, end_ms, data] for each), `history` what was said before them, `heard_until_ms` until when on the input timeline."""

Policy = Literal["interrupt", "ignore", "model"]
POLICIES: tuple[str, ...] = get_args(Policy)
FROZEN: tuple[SessionField, ...] = ("instructions", "voice", "reference_voice")
_Words = Annotated[tuple[Annotated[str, Field(min_length=1, max_length=32)], ...], Field(strict=False, max_length=64)]


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class OverlapDefaults(_Settings):
    """What a session's overlap policy is until its client says otherwise."""

    policy: Policy = "interrupt"
    """interrupt: who begins to speak while the model speaks cuts it off. model: the model alone decides. ignore: the model, and whoever
    detects speech, hears silence as long as the model speaks."""
    acknowledgements: _Words = ()
    """Words that interrupt nobody, where the words of the user are known."""
    short_ack_ms: int = Field(default=700, ge=0, le=5000)
    """Speech that goes on for so long is no acknowledgement."""


class NativeSettings(_Settings):
    """Of a graph without a dialog. Times in milliseconds."""

    unit_ms: int = Field(default=1000, ge=20, le=10_000)
    """Input that the model takes at once."""
    first_unit_ms: int | None = Field(default=None, ge=20, le=20_000)
    """The first of a session; null: as the others."""
    continue_silence: bool = True
    """A turn of the model goes on while no input comes."""
    continuation_slack_ms: int = Field(default=250, ge=0, le=5000)
    """Input that came so lately may go on: silence waits for it."""
    early_close_ms: int | None = Field(default=None, ge=0, le=2000)
    """So long after the user's voice ended the open unit is closed with silence, as soon as the detector told of the pause; null: units are
    always full."""
    overlap: OverlapDefaults = OverlapDefaults()
    frozen: Annotated[tuple[SessionField, ...], Field(strict=False)] = FROZEN
    """What holds from the first unit on."""
    recap_chars: int = Field(default=2000, ge=0, le=16_000)
    """Of what was said, told to a model that is placed anew."""
    reheard_ms: int = Field(default=30_000, ge=0, le=30_000)
    """Of the client's latest sound, heard again by it."""
    unit_log_ms: int = Field(default=60_000, ge=0, le=120_000)
    """Of input, whose units it is told as it noted them, where its stage takes `unit_log`. 0: of none."""

    @property
    def first_ms(self) -> int:
        return self.unit_ms if self.first_unit_ms is None else self.first_unit_ms


class StageMapping(_Settings):
    """The configuration of one stage. Each of its fields comes from one place."""

    session: dict[str, SessionField] = {}
    """Stage field: what of the session it is."""
    options: dict[str, str] = {}
    """Stage field: which of the session's model options it is. A list where the names are the same."""
    values: dict[str, Any] = {}
    """Stage field: a value that all sessions have."""

    @field_validator("options", mode="before")
    @classmethod
    def _same_names(cls, options: object) -> object:
        return {name: name for name in options} if isinstance(options, list) and all(isinstance(name, str) for name in options) else options

    @model_validator(mode="after")
    def _one_place_each(self) -> StageMapping:
        names = [*self.session, *self.options, *self.values]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise PydanticCustomError("profile", "{message}", {"message": f"fields {twice} come from two places"})
        return self
