"""The real decoder and real latents, made once."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from talker_svc.embedded.voice import Manner, PiperVoice
from vocoder_svc.embedded.decoder import PiperDecoder
from vocoder_svc.embedded.folder import voice_folder

TEXT = "The quick brown fox jumps over the lazy dog, and sleeps."


@pytest.fixture(scope="session")
def folder() -> Path:
    """The voice's folder in the models cache."""
    models = os.environ.get("PARLEY_MODELS")
    return voice_folder(Path(models) if models else None)


@pytest.fixture(scope="session")
def decoder(folder: Path) -> PiperDecoder:
    """The decoder of the models cache."""
    return PiperDecoder(folder)


@pytest.fixture(scope="session")
def latents(folder: Path) -> NDArray[np.float32]:
    """float32 [192, frames] of a spoken sentence."""
    return PiperVoice(folder).speak(TEXT, "a seed", Manner())
