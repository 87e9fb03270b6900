"""What a session may configure: the voice it speaks in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minicpmo45.config import SAMPLE_RATE_IN
from minicpmo45.errors import CheckpointError
from minicpmo45.token2wav import default_voice, voice_files
from stage_kit import InvalidConfig
from vocoder_svc.minicpmo45.voice import BadVoice, Recording, decoded, read_wav

FIELDS = ("voice", "reference_voice", "reference_rate_hz")

Named = Mapping[str, Recording | BadVoice]
"""Voices by name; in place of one that cannot be used the reason. "" is the default voice."""


def named_voices(checkpoint: Path, folder: Path | None, longest_s: float) -> Named:
    """All WAV files beside the checkpoint's assets and in `folder`, by their names without the ending. Raises CheckpointError, also for a
    default voice that cannot be used."""
    default = default_voice(checkpoint)
    try:
        found: dict[str, Recording | BadVoice] = {"": read_wav(default, longest_s)}
    except BadVoice as error:
        raise CheckpointError(default.name, error.why) from None
    for file in (*voice_files(checkpoint), *(sorted(folder.glob("*.wav")) if folder is not None else ())):
        try:
            found[file.stem] = read_wav(file, longest_s)
        except BadVoice as error:
            found[file.stem] = error
    return found


def chosen_voice(config: Mapping[str, Any], named: Named, longest_s: float) -> Recording:
    """The recording that the session speaks like: `reference_voice` (base64 of PCM16 mono at `reference_rate_hz`, else 16 kHz), or `voice`.

    Raises InvalidConfig that names the field.
    """
    for name in config:
        if name not in FIELDS:
            raise InvalidConfig(name, "unknown field")
    text = config.get("reference_voice")
    if text is None:
        return _by_name(config.get("voice") or "", named)
    if config.get("voice"):
        raise InvalidConfig("voice", "given beside reference_voice")
    rate = config.get("reference_rate_hz", SAMPLE_RATE_IN)
    if isinstance(rate, bool) or not isinstance(rate, int):
        raise InvalidConfig("reference_rate_hz", "must be a whole number")
    if not isinstance(text, str):
        raise InvalidConfig("reference_voice", "must be base64 text")
    try:
        return decoded(text, rate, longest_s)
    except BadVoice as error:
        raise InvalidConfig("reference_rate_hz" if "rate" in error.why else "reference_voice", error.why) from None


def _by_name(name: object, named: Named) -> Recording:
    if not isinstance(name, str) or name not in named:
        raise InvalidConfig("voice", "no such voice")
    found = named[name]
    if isinstance(found, BadVoice):
        raise InvalidConfig("voice", found.why)
    return found
