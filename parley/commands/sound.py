"""WAV files in and out: a recording at the wire's rate, and where the voice in it ends."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soxr
from msgspec import Struct

WIRE_RATE = 24_000
"""Samples a second on the wire: mono PCM16 little-endian."""
FRAME_MS = 10
VOICED_BELOW_PEAK_DB = 30.0
"""A frame is voice when its level is within this of the loudest frame."""

Samples = npt.NDArray[np.float32]


class BadRecording(Exception):
    """The file cannot be spoken; the message says why in one line."""


class Recording(Struct, frozen=True):
    """pcm: mono PCM16 little-endian at WIRE_RATE. voice_end_ms: end of the last voiced 10 ms frame."""

    pcm: bytes
    voice_end_ms: int

    @property
    def duration_ms(self) -> int:
        return len(self.pcm) // 2 * 1000 // WIRE_RATE


def load_recording(path: Path) -> Recording:
    """Reads an uncompressed WAV of any rate, width and channel count. Raises BadRecording."""
    try:
        with wave.open(str(path), "rb") as file:
            channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
            data = file.readframes(file.getnframes())
    except EOFError as error:
        raise BadRecording(f"cannot read {path}: it is too short for a WAV file") from error
    except (OSError, wave.Error) as error:
        raise BadRecording(f"cannot read {path}: {error}") from error
    if rate == 0:
        raise BadRecording(f"cannot read {path}: it has a sample rate of 0")
    whole = data[: len(data) // (channels * width) * channels * width]  # a file that was cut off may end within a frame
    samples = _as_float(whole, width).reshape(-1, channels).mean(axis=1, dtype=np.float32)
    if rate != WIRE_RATE:
        samples = soxr.resample(samples, rate, WIRE_RATE)
    end_ms = voice_end_ms(samples, WIRE_RATE)
    if end_ms == 0:
        raise BadRecording(f"there is no voice in {path}")
    return Recording(np.clip((samples * 32768.0).round(), -32768, 32767).astype("<i2").tobytes(), end_ms)


def write_wav(path: Path, pcm: bytes) -> None:
    """Writes mono PCM16 at WIRE_RATE. Raises OSError."""
    with path.open("wb") as raw, wave.open(raw, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(WIRE_RATE)
        file.writeframes(pcm)


def voice_end_ms(samples: Samples, rate: int) -> int:
    """End of the last frame, float32 [n], that is as loud as voice; 0 when nothing sounds at all."""
    size = rate * FRAME_MS // 1000
    frames = samples[: len(samples) // size * size].reshape(-1, size)
    level = np.sqrt((frames**2).mean(axis=1)) if len(frames) else np.zeros(0)
    if not level.any():
        return 0
    return int(np.flatnonzero(level > level.max() * 10 ** (-VOICED_BELOW_PEAK_DB / 20))[-1] + 1) * FRAME_MS


def is_sound(pcm: bytes) -> bool:
    """Whether PCM16 holds anything but silence."""
    return bool(np.frombuffer(pcm[: len(pcm) // 2 * 2], "<i2").any())


def _as_float(data: bytes, width: int) -> Samples:
    if width == 1:
        return (np.frombuffer(data, np.uint8).astype(np.float32) - 128.0) / 128.0
    if width == 3:
        # each sample into the upper three bytes of an int32: the sign comes along
        wide = np.zeros((len(data) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        return wide.view("<i4").reshape(-1).astype(np.float32) / np.float32(2**31)
    return np.frombuffer(data, f"<i{width}").astype(np.float32) / np.float32(2 ** (8 * width - 1))
