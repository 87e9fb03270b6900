"""Reference voices: the recording that a session's prefix holds."""

from __future__ import annotations

import base64
import binascii
import hashlib
import wave
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import soxr
from numpy.typing import NDArray

from minicpmo45.config import SAMPLE_RATE_IN
from minicpmo45.recordings import RATES, SHORTEST_MS
from stage_kit import InvalidConfig

_HEADERS = (b"RIFF", b"fLaC", b"OggS")


class VoiceRecording(msgspec.Struct, frozen=True):
    """PCM16 mono. Equal recordings are equal."""

    pcm: bytes
    rate: int

    @property
    def key(self) -> str:
        """SHA-256 of rate and samples."""
        return hashlib.sha256(self.rate.to_bytes(4, "little") + self.pcm).hexdigest()

    @property
    def seconds(self) -> float:
        """Its length."""
        return len(self.pcm) / 2 / self.rate

    def samples(self) -> NDArray[np.float32]:
        """fp32 at 16 kHz."""
        own = np.frombuffer(self.pcm, "<i2").astype(np.float32) / np.float32(32768)
        return own if self.rate == SAMPLE_RATE_IN else soxr.resample(own, self.rate, SAMPLE_RATE_IN).astype(np.float32)


Named = Mapping[str, VoiceRecording | str]
"""Recordings by name; in place of one that cannot be used the reason."""


def named_voices(checkpoint: Path, folder: Path | None, longest_s: float) -> Named:
    """The WAV files beside the checkpoint's assets and in `folder`, by their names without the ending."""
    found: dict[str, VoiceRecording | str] = {}
    for where in (checkpoint / "assets", *([folder] if folder is not None else [])):
        for file in sorted(where.glob("*.wav")):
            found[file.stem] = _read(file, longest_s)
    return found


def chosen_voice(config: Mapping[str, Any], named: Named, longest_s: float) -> VoiceRecording | None:
    """`reference_voice` (base64 of PCM16 mono at `reference_rate_hz`, else 16 kHz), or the one named by `voice`, or none.

    Raises InvalidConfig that names the field.
    """
    text, name = config.get("reference_voice"), config.get("voice") or ""
    if text is None:
        return _by_name(name, named) if name else None
    if name:
        raise InvalidConfig("voice", "given beside reference_voice")
    rate = config.get("reference_rate_hz", SAMPLE_RATE_IN)
    if isinstance(rate, bool) or rate not in RATES:
        raise InvalidConfig("reference_rate_hz", f"none of {', '.join(map(str, RATES))}")
    if not isinstance(text, str):
        raise InvalidConfig("reference_voice", "must be base64 text")
    try:
        pcm = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidConfig("reference_voice", "not base64") from None
    why = _fault(pcm, rate, longest_s)
    if why:
        raise InvalidConfig("reference_voice", why)
    return VoiceRecording(pcm, rate)


def _by_name(name: object, named: Named) -> VoiceRecording:
    found = named.get(name) if isinstance(name, str) else None
    if found is None:
        raise InvalidConfig("voice", "no such voice")
    if isinstance(found, str):
        raise InvalidConfig("voice", found)
    return found


def _read(file: Path, longest_s: float) -> VoiceRecording | str:
    try:
        with wave.open(str(file)) as reader:
            if reader.getsampwidth() != 2 or reader.getframerate() not in RATES:
                return "its file is not PCM16 at a usual rate"
            rate, channels = reader.getframerate(), reader.getnchannels()
            pcm = np.frombuffer(reader.readframes(reader.getnframes()), "<i2").reshape(-1, channels)[:, 0].tobytes()
    except (wave.Error, EOFError, OSError, ValueError):
        return "its file cannot be read"
    return _fault(pcm, rate, longest_s) or VoiceRecording(pcm, rate)


def _fault(pcm: bytes, rate: int, longest_s: float) -> str:
    """Why no voice can be made of it; empty: it can."""
    if not pcm:
        return "it is empty"
    if pcm.startswith(_HEADERS):
        return "it is a file with a header, not bare PCM16"
    if len(pcm) % 2:
        return "it is not PCM16: an odd number of bytes"
    seconds = len(pcm) / 2 / rate
    if seconds * 1000 < SHORTEST_MS:
        return f"it is shorter than {SHORTEST_MS} ms"
    return f"it is longer than {longest_s:g} s" if seconds > longest_s else ""
