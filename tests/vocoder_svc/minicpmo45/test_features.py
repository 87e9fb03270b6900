"""The three spectra of a voice against the packages' own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.vocoder_svc.minicpmo45.sounds import wave
from vocoder_svc.minicpmo45 import features
from vocoder_svc.minicpmo45.features import Array

REFERENCE = np.load(Path(__file__).parent / "fixtures" / "features.npz")


@pytest.mark.parametrize(
    ("name", "made", "bound"),
    [
        ("prompt", features.prompt_mel(wave(24_000, 30_011)), 1e-5),
        ("token", features.token_mel(wave(16_000, 20_011)), 1e-4),
        ("fbank", features.speaker_fbank(wave(16_000, 20_011)), 3e-4),
    ],
)
def test_spectra_are_the_packages(name: str, made: Array, bound: float) -> None:
    assert made.dtype == np.float32 and made.shape == REFERENCE[name].shape
    assert np.abs(made - REFERENCE[name]).max() < bound


def test_shortest_and_silent_recordings_stay_finite() -> None:
    assert features.prompt_mel(np.zeros(721, np.float32)).shape == (1, 80)
    assert features.token_mel(np.zeros(320, np.float32)).shape == (128, 2)
    fbank = features.speaker_fbank(np.zeros(400, np.float32))
    assert fbank.shape == (1, 80) and np.isfinite(fbank).all()
