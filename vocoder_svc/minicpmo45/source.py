"""The excitation of HiFT: nine sines that follow the pitch, and noise, merged to one signal. Noise is given, never drawn here."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from minicpmo45.config import SAMPLE_RATE_OUT, HiftConfig
from vocoder_svc.minicpmo45.layers import Weights, linear, within

NOISE_SAMPLES = 10 * SAMPLE_RATE_OUT


def noise_table(config: HiftConfig, seed: int) -> Tensor:
    """fp32 [240000, harmonics + 1] on the CPU, read round and round: normal, or uniform over 0 to 1 as the causal generation has it."""
    shape = (NOISE_SAMPLES, config.harmonics + 1)
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator) if config.causal else torch.randn(shape, generator=generator)


class Source:
    """SineGen2 and its merging layer. The random phase that the original adds to the first sample never reaches its output: the middle of
    each frame is sampled. So there is none here."""

    def __init__(self, weights: Weights, config: HiftConfig, hop: int) -> None:
        self._weights = weights
        self._config = config
        self._hop = hop

    def __call__(self, f0: Tensor, frames: Tensor, old: Tensor, phase: Tensor, noise: Tensor, begin: Tensor) -> tuple[Tensor, Tensor]:
        """f0 fp32 [B, W] Hz to (excitation [B, W * hop], phase after it).

        `frames` int64 [B]: frames of a row that count; `old` int64 [B]: leading ones whose excitation the caller has already (causal
        generation: the phase goes on after them). `phase` fp64 [B, sines] in cycles, used by the causal generation. `noise` fp32 [N,
        sines] is read round and round, from `begin` int64 [B] on.
        """
        orders = torch.arange(1, self._config.harmonics + 2, device=f0.device, dtype=f0.dtype)
        cycles = (f0[:, :, None] * orders / SAMPLE_RATE_OUT) % 1
        if self._config.causal:
            cycles = self._continued(cycles, frames, old, phase)
            return self._merged(f0, cycles, noise, begin), cycles[:, -1] % 1
        return self._merged(f0, self._restarted(cycles, frames), noise, begin), phase

    def _merged(self, f0: Tensor, cycles: Tensor, noise: Tensor, begin: Tensor) -> Tensor:
        """Sines at summed phases, fp64 [B, W, sines] in cycles (causal generation: held for a whole frame; first generation: linear between
        the middles of frames, held before the first and after the last), and noise."""
        config = self._config
        if config.causal:
            sines = _sines(cycles).repeat_interleave(self._hop, 1)
        else:
            smooth = functional.interpolate(cycles.transpose(1, 2), scale_factor=float(self._hop), mode="linear")
            sines = _sines(smooth).transpose(1, 2)
        voiced = (f0 > config.voiced_threshold_hz).to(f0.dtype).repeat_interleave(self._hop, 1)[:, :, None]
        loudness = voiced * config.noise_sigma + (1 - voiced) * config.sine_amplitude / 3
        place = begin[:, None] + torch.arange(sines.shape[1], device=f0.device)
        mixed = sines * config.sine_amplitude * voiced + loudness * noise[place % noise.shape[0]]
        return torch.tanh(linear(self._weights, "m_source.l_linear", mixed)).squeeze(2)

    def _restarted(self, cycles: Tensor, frames: Tensor) -> Tensor:
        """Phases summed in fp64 from the window's first frame."""
        last = torch.minimum(torch.arange(cycles.shape[1], device=cycles.device), frames[:, None] - 1)
        total = torch.cumsum(cycles.double(), 1) * self._hop
        return total.gather(1, last[:, :, None].expand_as(total))

    def _continued(self, cycles: Tensor, frames: Tensor, old: Tensor, phase: Tensor) -> Tensor:
        """Phases summed in fp64 on from `phase`, one value a frame."""
        counted = within(frames, cycles.shape[1]) & ~within(old, cycles.shape[1])
        return torch.cumsum(torch.where(counted[:, :, None], cycles.double(), 0.0), 1) * self._hop + phase[:, None]


def _sines(cycles: Tensor) -> Tensor:
    return torch.sin((cycles % 1) * (2 * math.pi)).float()
