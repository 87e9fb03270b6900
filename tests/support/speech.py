"""What clients say in tests: tones and recordings, as bytes of a wire format."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import soxr
from numpy.typing import NDArray

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "audio"


def tone(ms: int, rate: int = 24_000) -> bytes:
    """PCM16 that every detector by energy takes for speech."""
    at = np.arange(ms * rate // 1000) / rate
    return (np.sin(2 * np.pi * 220 * at) * 0.3 * 32767).astype("<i2").tobytes()


def silence(ms: int, rate: int = 24_000) -> bytes:
    return bytes(2 * (ms * rate // 1000))


def utterance(ms: int = 400, rate: int = 24_000) -> bytes:
    """A tone with the silence that ends a turn."""
    return tone(ms, rate) + silence(700, rate)


def question(rate: int = 24_000) -> bytes:
    """A recorded question as PCM16: one of the shared recordings, else the one that ships with Parley."""
    recorded = SHARED / "librivox_sense_0880.wav"
    path = recorded if recorded.exists() else ROOT / "parley" / "assets" / "synthetic_question.wav"
    return (np.clip(recording(path, rate), -1, 1) * 32767).astype("<i2").tobytes()


def recording(path: Path, rate: int = 24_000) -> NDArray[np.float32]:
    """A WAV file at this rate, in [-1, 1] or a little beyond."""
    with wave.open(str(path)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
        made: NDArray[np.float32] = soxr.resample(samples, file.getframerate(), rate)
    return made


def ulaw(pcm: bytes) -> bytes:
    """PCM16 to G.711 mu-law, by the standard's segments."""
    samples = np.clip(np.frombuffer(pcm, "<i2").astype(np.int32), -32635, 32635)
    sign = np.where(samples < 0, 0x80, 0)
    magnitude = np.abs(samples) + 132
    exponent = np.floor(np.log2(magnitude)).astype(np.int32) - 7
    mantissa = (magnitude >> (exponent + 3)) & 0x0F
    coded: bytes = (~(sign | (exponent << 4) | mantissa) & 0xFF).astype(np.uint8).tobytes()
    return coded
