"""What a voice is heard by: three spectra of its recording. All fp32 in NumPy, on the CPU, once a voice."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

PROMPT_FFT, PROMPT_HOP = 1920, 480
TOKEN_FFT, TOKEN_HOP = 400, 160
FBANK_SAMPLES, FBANK_HOP, FBANK_FFT = 400, 160, 512
FBANK_FLOOR = float(np.finfo(np.float32).eps)
PREEMPHASIS = 0.97


def prompt_mel(samples: Array) -> Array:
    """float32 [n] at 24 kHz to log mels [n // 480, 80]: 80 Slaney bands to 8 kHz of magnitudes, floor 1e-5, mirrored by 720 samples at both
    ends.

    At least 721 samples.
    """
    margin = (PROMPT_FFT - PROMPT_HOP) // 2
    spectrum = _spectrum(np.pad(samples, margin, mode="reflect"), PROMPT_FFT, PROMPT_HOP)
    magnitude = np.sqrt(spectrum.real**2 + spectrum.imag**2 + 1e-9)
    return _log_floor(magnitude @ slaney_bands(24_000, PROMPT_FFT, 80).T, 1e-5)


def token_mel(samples: Array) -> Array:
    """float32 [n] at 16 kHz to [128, n // 160]: as Whisper hears it, log10 of power, 8 below the loudest at most, (x + 4) / 4. At least 201
    samples."""
    spectrum = _spectrum(np.pad(samples, TOKEN_FFT // 2, mode="reflect"), TOKEN_FFT, TOKEN_HOP)[:-1]
    power = (spectrum.real**2 + spectrum.imag**2) @ slaney_bands(16_000, TOKEN_FFT, 128).T
    loud = np.log10(np.maximum(power, 1e-10))
    scaled = (np.maximum(loud, loud.max() - 8.0) + 4.0) / 4.0
    return np.ascontiguousarray(scaled.T, dtype=np.float32)


def speaker_fbank(samples: Array) -> Array:
    """float32 [n] at 16 kHz to [(n - 400) // 160 + 1, 80]: Kaldi's filter bank (25 ms every 10 ms, DC removed, pre-emphasis, Povey window,
    no dither, mel 20 Hz to 8 kHz), natural log, each band's mean over time removed. At least 400 samples."""
    count = (len(samples) - FBANK_SAMPLES) // FBANK_HOP + 1
    frames = np.lib.stride_tricks.sliding_window_view(samples, FBANK_SAMPLES)[::FBANK_HOP][:count].astype(np.float64)
    frames = frames - frames.mean(1, keepdims=True)
    frames = frames - PREEMPHASIS * np.concatenate((frames[:, :1], frames[:, :-1]), 1)
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FBANK_SAMPLES) / (FBANK_SAMPLES - 1))) ** 0.85
    power = np.abs(np.fft.rfft(frames * window, FBANK_FFT)) ** 2
    loud = np.log(np.maximum(power @ kaldi_bands().T, FBANK_FLOOR))
    return np.asarray(loud - loud.mean(0, keepdims=True), dtype=np.float32)


@cache
def slaney_bands(rate: int, fft: int, bands: int) -> NDArray[np.float64]:
    """[bands, fft / 2 + 1]: triangles from 0 to 8 kHz on the Slaney scale (linear to 1 kHz, then logarithmic), each of unit area."""
    edges = _slaney_hz(np.linspace(0, _slaney_mel(8000.0), bands + 2))
    return _triangles(edges, np.linspace(0, rate / 2, fft // 2 + 1)) * (2.0 / (edges[2:] - edges[:-2]))[:, None]


@cache
def kaldi_bands() -> NDArray[np.float64]:
    """[80, 257]: triangles on Kaldi's mel scale, straight in mel, from 20 Hz to 8 kHz; the Nyquist bin is left out."""
    edges = np.linspace(_htk_mel(np.float64(20)), _htk_mel(np.float64(8000)), 82)
    bins = _htk_mel(np.arange(FBANK_FFT // 2) * 16_000 / FBANK_FFT)
    return np.pad(_triangles(edges, bins), ((0, 0), (0, 1)))


def _spectrum(samples: Array, fft: int, hop: int) -> NDArray[np.complex128]:
    """[frames, fft / 2 + 1] behind a periodic Hann window."""
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(fft) / fft)
    frames = np.lib.stride_tricks.sliding_window_view(samples, fft)[::hop]
    return np.asarray(np.fft.rfft(frames * window), dtype=np.complex128)


def _log_floor(values: NDArray[np.float64], floor: float) -> Array:
    return np.log(np.maximum(values, floor)).astype(np.float32)


def _triangles(edges: NDArray[np.float64], places: NDArray[np.float64]) -> NDArray[np.float64]:
    left, middle, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    return np.maximum(0.0, np.minimum((places - left) / (middle - left), (right - places) / (right - middle)))


def _htk_mel(hz: NDArray[np.float64] | np.float64) -> NDArray[np.float64]:
    return np.asarray(1127.0 * np.log(1.0 + hz / 700.0))


def _slaney_mel(hz: float) -> float:
    return hz * 3 / 200 if hz < 1000 else 15 + np.log(hz / 1000) * 27 / np.log(6.4)


def _slaney_hz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp(np.log(6.4) / 27 * (mel - 15)))
