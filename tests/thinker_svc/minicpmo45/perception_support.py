"""What the tests of perception share: tiny weights, sound and pictures, all made from seeds."""

from __future__ import annotations

import hashlib
import io
import math
import wave
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from minicpmo45.config import Config
from minicpmo45.layout import safetensors_layout, select

FIXTURES = Path(__file__).parent / "fixtures" / "perception"
ROOT = Path(__file__).parents[3]
PREFIXES = ("apm.", "audio_projection_layer.", "vpm.", "resampler.")
FIRST, UNIT = 16_480, 16_000
Samples = NDArray[np.float32]


def tiny_weights(config: Config) -> dict[str, Tensor]:
    """fp32 tensors of every name of perception, each from a seed of its own, so spread that every part of the networks matters."""
    return {name: _tensor(name, spec.shape) for name, spec in select(safetensors_layout(config), PREFIXES).items()}


def _tensor(name: str, shape: tuple[int, ...]) -> Tensor:
    seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    values = np.random.default_rng(seed).standard_normal(shape)
    if len(shape) == 1:
        return torch.from_numpy((1.0 if name.endswith("weight") else 0.0) + 0.1 * values).float()
    spread = 0.3 if "position" in name or name.endswith("query") else 1.5 / math.sqrt(math.prod(shape[1:]))
    return torch.from_numpy(values * spread).float()


def recording(path: Path) -> Samples:
    """A mono PCM16 file at 16 kHz as float32."""
    with wave.open(str(path)) as file:
        assert file.getframerate() == 16_000
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768


def sound(units: int, seed: int = 0) -> Samples:
    """Speech (the question that ships with Parley, repeated) of changing loudness, loudest in its second second, with a click at 10 s,
    where a window begins, and one at the end of the 21st unit."""
    length = FIRST + UNIT * (units - 1)
    if units < 4:
        return sound(4, seed)[:length]
    rng = np.random.default_rng(seed)
    speech = np.resize(np.roll(recording(ROOT / "parley" / "assets" / "synthetic_question.wav"), 7919 * seed), length)
    gains = rng.choice([0.0, 0.01, 0.05, 0.1], length // UNIT + 1)
    gains[1], gains[3] = 1.0, 0.3
    made = speech * np.repeat(gains, UNIT)[:length] + 1e-4 * rng.standard_normal(length)
    for at in (10 * UNIT, FIRST + 20 * UNIT - 30):
        made[at : at + 8] += 0.6
    return made.astype(np.float32)


def unit_of(samples: Samples, index: int) -> Samples:
    """The new samples of a unit of a session that hears `samples`."""
    return samples[:FIRST] if index == 0 else samples[FIRST + UNIT * (index - 1) : FIRST + UNIT * index]


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Coloured clouds with grain."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (7, 9, 3), np.uint8)).resize((width, height), Image.Resampling.BICUBIC)
    return Image.fromarray(np.clip(np.asarray(coarse, np.int16) + rng.integers(-20, 21, (height, width, 3)), 0, 255).astype(np.uint8))


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()
