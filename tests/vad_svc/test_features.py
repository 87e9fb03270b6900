"""Log-mel features against numbers that the extractor of Smart Turn's training made of the same signals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from vad_svc.features import FRAMES, MELS, log_mel, mel_filters

REFERENCE = json.loads((Path(__file__).parent / "data" / "log_mel.json").read_text())


def _signal(seconds: float) -> NDArray[np.float32]:
    t = np.arange(int(16000 * seconds)) / 16000
    chirp = 0.3 * np.sin(2 * np.pi * (200 + 150 * t) * t)
    swell = 0.1 * np.sin(2 * np.pi * 3100 * t) * (1 + np.sin(2 * np.pi * 3 * t))
    return (chirp + swell + 0.01 * np.sin(1e5 * t * t)).astype(np.float32)


@pytest.mark.parametrize("name", REFERENCE)
def test_same_numbers(name: str) -> None:
    expected = REFERENCE[name]
    features = log_mel(_signal(expected["seconds"]))
    assert (features.shape, features.dtype) == ((MELS, FRAMES), np.float32)
    np.testing.assert_allclose(features[::16, ::50], expected["every_16th_mel_every_50th_frame"], atol=2e-5)
    assert float(features.astype(np.float64).mean()) == pytest.approx(expected["mean"], abs=1e-5)


def test_short_audio_stands_at_the_end() -> None:
    features = log_mel(_signal(1.0))
    assert np.ptp(features[:, :690]) < np.ptp(features[:, 700:])


def test_filters_have_the_slaney_area() -> None:
    filters = mel_filters()
    assert filters.shape == (80, 201)
    np.testing.assert_allclose(filters[50:].sum(axis=1) * 40, 1.0, atol=0.05)


def test_silence_is_finite() -> None:
    assert np.isfinite(log_mel(np.zeros(0, np.float32))).all()
