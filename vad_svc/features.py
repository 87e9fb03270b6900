"""Log-mel features in the form that Whisper-style encoders read, for Smart Turn."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RATE = 16_000
SECONDS = 8
SAMPLES = RATE * SECONDS
MELS = 80
FRAMES = 800
_FFT = 400
_HOP = 160
_FLOOR = 1e-10
_VARIANCE_FLOOR = 1e-7
_RANGE_DECADES = 8.0

_KNEE_HZ = 1000.0
_HZ_PER_MEL = 200.0 / 3.0
_KNEE_MEL = _KNEE_HZ / _HZ_PER_MEL
_LOG_STEP = np.log(6.4) / 27.0


def _mel_to_hz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    """Slaney's scale: linear up to 1 kHz, logarithmic above."""
    return np.where(mel < _KNEE_MEL, mel * _HZ_PER_MEL, _KNEE_HZ * np.exp(_LOG_STEP * (mel - _KNEE_MEL)))


def mel_filters() -> NDArray[np.float64]:
    """[mels, bins] triangles of equal area between neighbouring mel points from 0 to 8 kHz."""
    top = _KNEE_MEL + np.log(RATE / 2 / _KNEE_HZ) / _LOG_STEP
    points = _mel_to_hz(np.linspace(0.0, top, MELS + 2))
    low, peak, high = points[:-2, None], points[1:-1, None], points[2:, None]
    bins = np.linspace(0.0, RATE / 2, _FFT // 2 + 1)[None, :]
    rising = (bins - low) / (peak - low)
    falling = (high - bins) / (high - peak)
    return np.clip(np.minimum(rising, falling), 0.0, None) * (2.0 / (high - low))


_FILTERS = np.ascontiguousarray(mel_filters().T)
_WINDOW = 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(_FFT) / _FFT)


def log_mel(audio: NDArray[np.float32]) -> NDArray[np.float32]:
    """Float32 [n] at 16 kHz -> float32 [80, 800]. The last 8 s count; shorter audio gets silence before it."""
    window = np.zeros(SAMPLES, np.float32)
    tail = audio[-SAMPLES:]
    if tail.size:
        window[-tail.size :] = tail
    window = (window - window.mean()) / np.sqrt(window.var() + _VARIANCE_FLOOR)
    padded = np.pad(window.astype(np.float64), _FFT // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, _FFT)[::_HOP][:FRAMES]
    power = np.abs(np.fft.rfft(frames * _WINDOW, axis=1)) ** 2
    log = np.log10(np.maximum(power @ _FILTERS, _FLOOR))
    clipped = np.maximum(log, log.max() - _RANGE_DECADES)
    return np.ascontiguousarray(((clipped + 4.0) / 4.0).T, np.float32)
