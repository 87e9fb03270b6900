"""Recorded speech: the shared recordings where they are, else those that ship with the project; synthetic ones are called synth_*."""

from __future__ import annotations

import io
import wave
from pathlib import Path

import numpy as np
import pytest
import soxr
from numpy.typing import NDArray

from tests.support.process import ROOT
from tests.support.speech import SHARED

FOLDERS = (SHARED, Path(__file__).parent / "audio", ROOT / "benchmarks" / "audio")
RATE = 24_000
MODEL_RATE = 16_000
READ_BY_PEOPLE = {
    "librivox_sense_0870": (
        "and mister john dashwood had then leisure to consider how much there might be prudently in his power to do for them"
    ),
    "librivox_sense_0880": "he was not an ill disposed young man",
    "librivox_sense_0890": "unless to be rather cold hearted and rather selfish is to be ill disposed",
    "cards_001": "ten of clubs",
    "goforward": "go forward ten meters",
}
SYNTHETIC = {
    "synth_q_capital_france": "what is the capital of france",
    "synth_q_sky_blue": "why is the sky blue",
    "synth_stop_interrupt": "wait stop for a second",
}
TEXTS = READ_BY_PEOPLE | SYNTHETIC


def available(name: str) -> bool:
    return _find(name) is not None


def _find(name: str) -> Path | None:
    return next((path for folder in FOLDERS if (path := folder / f"{name}.wav").exists()), None)


def samples(name: str, rate: int = RATE) -> NDArray[np.float32]:
    """Float32 [n] in [-1, 1] at `rate` Hz. Skips the test where the recording is absent."""
    if (path := _find(name)) is None:
        pytest.skip(f"the recording {name} is not here")
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth()) == (1, 2)
        heard = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
        return np.asarray(soxr.resample(heard, file.getframerate(), rate), np.float32)


def pcm(name: str) -> bytes:
    """PCM16 at 24 kHz, as clients send it."""
    return to_pcm(samples(name))


def to_pcm(sound: NDArray[np.float32]) -> bytes:
    return (np.clip(sound, -1, 1) * 32767).astype("<i2").tobytes()


def to_samples(sound: bytes, rate: int = MODEL_RATE) -> NDArray[np.float32]:
    """PCM16 at 24 kHz as float32 [n] at `rate`."""
    return np.asarray(soxr.resample(np.frombuffer(sound, "<i2").astype(np.float32) / 32768, RATE, rate), np.float32)


def voiced_ms(sound: NDArray[np.float32], rate: int = RATE, least: float = 0.01) -> tuple[int, int]:
    """Where the first and the last sample above `least` lie."""
    loud = np.flatnonzero(np.abs(sound) > least)
    return int(loud[0]) * 1000 // rate, int(loud[-1]) * 1000 // rate


def wav(sound: NDArray[np.float32], rate: int = RATE) -> bytes:
    """A mono PCM16 WAV file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(to_pcm(sound))
    return file.getvalue()


def words(text: str) -> str:
    """Lower case without punctuation; "Mr." as the transcripts have it."""
    plain = "".join(character if character.isalnum() else " " for character in text.lower().replace("'", ""))
    return " ".join("mister" if word == "mr" else word for word in plain.split())
