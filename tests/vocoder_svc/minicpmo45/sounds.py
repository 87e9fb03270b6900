"""Recordings out of formulas."""

from __future__ import annotations

import base64

import numpy as np
from numpy.typing import NDArray


def wave(rate: int, samples: int) -> NDArray[np.float32]:
    """float32: a gliding sine that comes and goes, and noise."""
    t, rng = np.arange(samples) / rate, np.random.default_rng(rate)
    tone = 0.3 * np.sin(2 * np.pi * (150 + 60 * np.sin(5 * t)) * t) * (np.sin(9 * t) > -0.3)
    return (tone + 0.02 * rng.standard_normal(samples)).astype(np.float32)


def pcm(rate: int, seconds: float) -> bytes:
    """The same as PCM16."""
    return (wave(rate, int(rate * seconds)) * 32767).astype("<i2").tobytes()


def text(data: bytes) -> str:
    """base64."""
    return base64.b64encode(data).decode()
