"""The recordings, as float32 at 16 kHz. A test that needs them is skipped where they are absent."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

AUDIO = Path(__file__).resolve().parents[4] / "shared" / "audio"
RATE = 16_000


def recording(name: str) -> NDArray[np.float32]:
    path = AUDIO / f"{name}.wav"
    if not path.exists():
        pytest.skip(f"recording {name} is not here")
    with wave.open(str(path)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2)
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768


def silence(ms: int) -> NDArray[np.float32]:
    return np.zeros(ms * RATE // 1000, np.float32)
