"""What a session asks of stage `turn`."""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

import msgspec

from stage_kit import InvalidConfig
from vad_svc.settings import TurnSettings

Mode = Literal["server_vad", "semantic_vad", "none"]
Eagerness = Literal["low", "medium", "high", "auto"]


class Patience(NamedTuple):
    """How sure Smart Turn must be, and how much silence (ms) then ends the turn."""

    confident: float
    immediate: float
    confident_ms: int
    immediate_ms: int
    max_pause_ms: int
    fallback_ms: int


_MEDIUM = Patience(0.88, 0.97, 640, 250, 2000, 640)
PATIENCE: dict[Eagerness, Patience] = {
    "low": Patience(0.92, 0.99, 1200, 500, 3000, 800),
    "medium": _MEDIUM,
    "high": Patience(0.80, 0.93, 320, 200, 1200, 512),
    "auto": _MEDIUM,
}


class TurnConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stage configuration. `threshold` is a speech probability; times in milliseconds."""

    mode: Mode = "server_vad"
    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    eagerness: Eagerness = "auto"

    @property
    def patience(self) -> Patience:
        return PATIENCE[self.eagerness]


def parse(config: dict[str, Any], settings: TurnSettings) -> TurnConfig:
    """Raises InvalidConfig that names the field at fault."""
    try:
        parsed = msgspec.convert(config, TurnConfig)
    except msgspec.ValidationError as error:
        raise InvalidConfig(_field(str(error)), str(error)) from None
    if not 0.0 <= parsed.threshold <= 1.0:
        raise InvalidConfig("threshold", "must be from 0 to 1")
    if not 0 <= parsed.prefix_padding_ms <= settings.prefix_most_ms:
        raise InvalidConfig("prefix_padding_ms", f"must be from 0 to {settings.prefix_most_ms}")
    if not 0 <= parsed.silence_duration_ms <= settings.silence_most_ms:
        raise InvalidConfig("silence_duration_ms", f"must be from 0 to {settings.silence_most_ms}")
    return parsed


def _field(message: str) -> str:
    """msgspec names the field as `unknown field `x`` or `at `$.x``."""
    found = re.search(r"unknown field `([^`]*)`|`\$\.([^`]*)`", message)
    return next(filter(None, found.groups()), "") if found else ""
