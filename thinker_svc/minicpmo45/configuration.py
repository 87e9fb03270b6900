"""What a session may configure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from minicpmo45.config import VisionConfig
from stage_kit import InvalidConfig
from thinker_svc.minicpmo45.note import BadLog, Note, read_log
from thinker_svc.minicpmo45.sampler import Sampling
from thinker_svc.minicpmo45.unit import MOST_UNIT_TOKENS, UnitRules
from thinker_svc.minicpmo45.voice import Named, VoiceRecording, chosen_voice
from thinker_svc.minicpmo45.window import WindowRules

INSTRUCTIONS = "Streaming Omni Conversation."
"""The reference's own."""
MOST_TEXT = 65_536
"""Characters of `instructions` and of `previous`."""
SEED_BITS = 63

_NUMBERS: dict[str, tuple[float, float]] = {
    "temperature": (0.05, 2.0),
    "top_p": (0.0, 1.0),
    "repetition_penalty": (0.5, 2.0),
    "length_penalty": (0.1, 10.0),
    "listen_prob_scale": (0.0, 10.0),
}
_COUNTS: dict[str, tuple[int, int]] = {
    "top_k": (0, 100_000),
    "listen_top_k": (0, 100_000),
    "seed": (0, (1 << SEED_BITS) - 1),
    "max_new_tokens_per_unit": (2, MOST_UNIT_TOKENS),
    "max_chars_per_unit": (1, 1_000),
    "force_listen_count": (0, 1_000),
    "listen_until_ms": (0, (1 << 32) - 1),
    "window_units": (1, 1_000),
    "window_previous_tokens": (0, 4_096),
    "max_slices": (1, VisionConfig().max_slices),
}
_MARKS = ("window_high_tokens", "window_low_tokens")
_CHOICES = {"listen_token": ("listen", "im_end"), "window": ("off", "basic", "context")}
_TEXTS = ("instructions", "previous")
_VOICE = ("voice", "reference_voice", "reference_rate_hz")
_LOG = "unit_log"
FROZEN = ("instructions", "voice", "previous", _LOG)
"""What holds from the first unit on; the log does from the first sound on."""


class SessionConfig(msgspec.Struct, frozen=True):
    """Configuration of a session. `seed` None: derived from the session's name."""

    instructions: str = INSTRUCTIONS
    voice: VoiceRecording | None = None
    previous: str = ""
    """What was said before the stage was placed anew, and before `unit_log`."""
    unit_log: tuple[Note, ...] = ()
    """The latest units before the stage was placed anew, oldest first: they are fed again. Pictures of theirs are gone."""
    sampling: Sampling = Sampling()
    seed: int | None = None
    rules: UnitRules = UnitRules()
    window: WindowRules = WindowRules()
    force_listen_count: int = 3
    """The first so many units listen."""
    listen_until_ms: int = 0
    """Units that end by this time of the input timeline listen: sound that a stage placed anew only hears again."""
    max_slices: int = 1
    """Of frames that do not say it themselves."""


def session_config(config: Mapping[str, Any], named: Named, voice_s: float, window_tokens: int, vocab_size: int) -> SessionConfig:
    """The typed configuration. Raises InvalidConfig that names the field."""
    _check(config, window_tokens)
    sampling = {name: config[name] for name in Sampling.__struct_fields__ if name in config}
    high = config.get("window_high_tokens", min(WindowRules().high_tokens, window_tokens * 7 // 8))
    low = config.get("window_low_tokens", min(WindowRules().low_tokens, high * 3 // 4))
    if low >= high:
        raise InvalidConfig("window_low_tokens", "not below window_high_tokens")
    recap = config.get("window_previous_tokens", min(WindowRules().previous_tokens, window_tokens // 8))
    if recap > window_tokens // 4:
        # behind a prefix of half the window it would leave no room for units once it is full
        raise InvalidConfig("window_previous_tokens", f"more than {window_tokens // 4}, a quarter of the window")
    defaults, rules, window = SessionConfig(), UnitRules(), WindowRules()
    return SessionConfig(
        instructions=config.get("instructions", defaults.instructions),
        voice=chosen_voice(config, named, voice_s),
        previous=config.get("previous", defaults.previous),
        unit_log=_log(config, vocab_size),
        sampling=msgspec.convert(sampling, Sampling),
        seed=config.get("seed"),
        rules=UnitRules(
            config.get("max_new_tokens_per_unit", rules.most_tokens),
            config.get("max_chars_per_unit", rules.most_characters),
        ),
        window=WindowRules(
            mode=config.get("window", window.mode),
            high_tokens=high,
            low_tokens=low,
            units=config.get("window_units", window.units),
            previous_tokens=recap,
        ),
        force_listen_count=config.get("force_listen_count", defaults.force_listen_count),
        listen_until_ms=config.get("listen_until_ms", defaults.listen_until_ms),
        max_slices=config.get("max_slices", defaults.max_slices),
    )


def frozen_changes(held: SessionConfig, wanted: SessionConfig) -> list[str]:
    """The fields that hold from the first unit on and were to change."""
    return [name for name in FROZEN if getattr(held, name) != getattr(wanted, name)]


def _log(config: Mapping[str, Any], vocab_size: int) -> tuple[Note, ...]:
    try:
        return read_log(config.get(_LOG, []), vocab_size)
    except BadLog as error:
        raise InvalidConfig(_LOG, str(error)) from None


def _check(config: Mapping[str, Any], window_tokens: int) -> None:
    for name, value in config.items():
        if name in _NUMBERS:
            low, high = _NUMBERS[name]
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not low <= value <= high:
                raise InvalidConfig(name, f"must be a number from {low:g} to {high:g}")
        elif name in _COUNTS or name in _MARKS:
            least, most = _COUNTS.get(name, (1, window_tokens))
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise InvalidConfig(name, f"must be a whole number from {least} to {most}")
        elif name in _CHOICES:
            if value not in _CHOICES[name]:
                raise InvalidConfig(name, f"none of {', '.join(_CHOICES[name])}")
        elif name in _TEXTS:
            if not isinstance(value, str) or len(value) > MOST_TEXT or any("\ud800" <= letter <= "\udfff" for letter in value):
                raise InvalidConfig(name, f"must be a text of at most {MOST_TEXT} characters")
        elif name == "greedy":
            if not isinstance(value, bool):
                raise InvalidConfig(name, "must be true or false")
        elif name != _LOG and name not in _VOICE:
            raise InvalidConfig(name, "unknown field")
