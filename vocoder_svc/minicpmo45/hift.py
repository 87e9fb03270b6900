"""HiFT: mel frames to samples through a source filter and an inverse short-time Fourier transform. Both generations, batched over ragged
rows."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from minicpmo45.config import HiftConfig
from vocoder_svc.minicpmo45.layers import Weights, section, within
from vocoder_svc.minicpmo45.source import Source

SNAKE_EPS = 1e-9
FINAL_SLOPE = 0.01
LARGEST_MAGNITUDE = 100.0
PRE_LOOKAHEAD = 4
F0_LOOKAHEAD = 3
F0_LAYERS = (0, 2, 4, 6, 8)


class Hift:
    """The networks of `hift.pt`, weight norm folded. Rows lie left in a window of W frames; beyond its length a row is silence, as if it
    were alone.

    First generation: symmetric convolutions. Causal generation: everything looks back, but for 3 frames of the pitch and 4 of the first
    layer.
    """

    def __init__(self, weights: Weights, config: HiftConfig) -> None:
        self.config = config
        self.rate = math.prod(config.upsample_rates)
        self.hop = self.rate * config.istft_hop
        self._weights = weights
        # phases sum the pitch over a second: in fp32 its rounding, which no batch shares with another, would be heard in the ninth harmonic
        self._pitch = {
            f"{n}.{part}": weights[f"f0_predictor.condnet.{n}.{part}"].double() for n in F0_LAYERS for part in ("weight", "bias")
        }
        self._head = weights["f0_predictor.classifier.weight"].double(), weights["f0_predictor.classifier.bias"].double()
        stages = range(len(config.upsample_rates))
        self._blocks = [section(weights, f"resblocks.{n}.") for n in range(len(stages) * len(config.resblock_kernels))]
        self._source_blocks = [section(weights, f"source_resblocks.{n}.") for n in stages]
        self._window = torch.hann_window(config.n_fft, device=weights["conv_post.weight"].device)
        self.source = Source(weights, config, self.hop)

    @torch.inference_mode()
    def pitch(self, mel: Tensor, frames: Tensor) -> Tensor:
        """mel fp32 [B, mels, W], frames int64 [B], to F0 in Hz, fp32 [B, W]; causal: right only where 3 more frames follow, or the turn
        ended."""
        x = mel.to(self._head[0])
        for layer in F0_LAYERS:
            kernel = self._pitch[f"{layer}.weight"].shape[2]
            x = torch.where(within(frames, mel.shape[2])[:, None], x, 0.0)
            ahead = (F0_LOOKAHEAD if layer == 0 else 0) if self.config.causal else kernel // 2
            x = functional.pad(x, (kernel - 1 - ahead, ahead))
            x = functional.elu(functional.conv1d(x, self._pitch[f"{layer}.weight"], self._pitch[f"{layer}.bias"]))
        return functional.linear(x.transpose(1, 2), *self._head).squeeze(2).abs().float()

    @torch.inference_mode()
    def decode(self, mel: Tensor, source: Tensor, frames: Tensor, decoded: Tensor) -> Tensor:
        """mel fp32 [B, mels, W] and excitation [B, W * hop], of which `frames` int64 [B] count, to samples fp32 [B, W * hop].

        `decoded` int64 [B]: frames that come out, at most `frames`; less where the rest is look-ahead.
        """
        config, w = self.config, self._weights
        size = mel.shape[2]
        spectrum = self._spectrum(source, frames * self.hop)
        spectrum = torch.where(within(decoded * self.rate + 1, spectrum.shape[2])[:, None], spectrum, 0.0)
        x = torch.where(within(frames, size)[:, None], mel, 0.0)
        x = self._mask(self._conv(w, "conv_pre", x, ahead=PRE_LOOKAHEAD if config.causal else None), decoded, 1)
        scale = 1
        for stage, rate in enumerate(config.upsample_rates):
            scale *= rate
            x = self._raise(stage, functional.leaky_relu(x, config.leaky_slope))
            extra = int(stage == len(config.upsample_rates) - 1)
            if extra:
                x = torch.cat((x[:, :, 1:2], x), 2)
            lengths = decoded * scale + extra
            x = x + self._block(self._source_blocks[stage], self._lower(stage, spectrum), lengths)
            x = self._mask(x, lengths)
            count = len(config.resblock_kernels)
            x = torch.stack([self._block(block, x, lengths) for block in self._blocks[stage * count : (stage + 1) * count]]).mean(0)
            x = self._mask(x, lengths)
        x = self._conv(w, "conv_post", functional.leaky_relu(x, FINAL_SLOPE))
        return self._samples(x, decoded * self.rate + 1).clamp(-config.audio_limit, config.audio_limit)

    def _mask(self, x: Tensor, lengths: Tensor, scale: int = 1) -> Tensor:
        return torch.where(within(lengths * scale, x.shape[2])[:, None], x, 0.0)

    def _conv(self, weights: Weights, name: str, x: Tensor, dilation: int = 1, ahead: int | None = None) -> Tensor:
        """Same length. `ahead`: frames of right context; None: half in the first generation, none in the causal one."""
        weight = weights[f"{name}.weight"]
        reach = (weight.shape[2] - 1) * dilation
        if ahead is None:
            ahead = 0 if self.config.causal else reach // 2
        return functional.conv1d(functional.pad(x, (reach - ahead, ahead)), weight, weights[f"{name}.bias"], dilation=dilation)

    def _raise(self, stage: int, x: Tensor) -> Tensor:
        """To `upsample_rates[stage]` times the length: transposed convolution, or repetition and a causal convolution."""
        rate, kernel = self.config.upsample_rates[stage], self.config.upsample_kernels[stage]
        if self.config.causal:
            return self._conv(self._weights, f"ups.{stage}", x.repeat_interleave(rate, 2))
        weight, bias = self._weights[f"ups.{stage}.weight"], self._weights[f"ups.{stage}.bias"]
        return functional.conv_transpose1d(x, weight, bias, stride=rate, padding=(kernel - rate) // 2)

    def _lower(self, stage: int, spectrum: Tensor) -> Tensor:
        """The source's spectrum at the rate of `stage`."""
        weight, bias = self._weights[f"source_downs.{stage}.weight"], self._weights[f"source_downs.{stage}.bias"]
        rate = math.prod(self.config.upsample_rates[stage + 1 :])
        if rate == 1:
            return functional.conv1d(spectrum, weight, bias)
        padding = (rate - 1, 0) if self.config.causal else (rate // 2, rate // 2)
        return functional.conv1d(functional.pad(spectrum, padding), weight, bias, stride=rate)

    def _block(self, block: Weights, x: Tensor, lengths: Tensor) -> Tensor:
        """Three pairs of convolutions behind snakes; the first of each pair dilated."""
        for index, dilation in enumerate(self.config.resblock_dilations):
            inner = self._mask(_snake(x, block[f"activations1.{index}.alpha"]), lengths)
            inner = self._conv(block, f"convs1.{index}", inner, dilation)
            inner = self._mask(_snake(inner, block[f"activations2.{index}.alpha"]), lengths)
            x = x + self._conv(block, f"convs2.{index}", inner)
        return x

    def _spectrum(self, source: Tensor, samples: Tensor) -> Tensor:
        """[B, S] to [B, n_fft + 2, S / hop + 1]: real parts, then imaginary ones; each row is mirrored at its own two ends."""
        half = self.config.n_fft // 2
        place = torch.arange(-half, source.shape[1] + half, device=source.device).abs()
        last = samples[:, None] - 1
        place = torch.where(place > last, 2 * last - place, place[None]).clamp(0, source.shape[1] - 1)
        framed = source.gather(1, place).unfold(1, self.config.n_fft, self.config.istft_hop) * self._window
        bins = torch.fft.rfft(framed)
        return torch.cat((bins.real, bins.imag), 2).transpose(1, 2)

    def _samples(self, x: Tensor, columns: Tensor) -> Tensor:
        """Log magnitudes and phases [B, n_fft + 2, T], of which `columns` int64 [B] count, to samples [B, (T - 1) * hop]: overlap-add over
        the window's own sum of squares."""
        bins, hop = self.config.n_fft // 2 + 1, self.config.istft_hop
        magnitude = torch.exp(x[:, :bins]).clamp(max=LARGEST_MAGNITUDE)
        angle = torch.sin(x[:, bins:])
        seen = within(columns, x.shape[2])[:, :, None]
        framed = torch.fft.irfft(torch.polar(magnitude, angle).transpose(1, 2), n=self.config.n_fft) * self._window
        total = _overlap(torch.where(seen, framed, 0.0), hop)
        weight = _overlap(torch.where(seen, self._window.square(), 0.0), hop)
        half = self.config.n_fft // 2
        return (total / weight.clamp(min=1e-11))[:, half : half + (x.shape[2] - 1) * hop]


def _snake(x: Tensor, alpha: Tensor) -> Tensor:
    """x + sin(a x) ** 2 / a (arXiv 2006.08195)."""
    rate = alpha[:, None]
    return x + torch.sin(x * rate).square() / (rate + SNAKE_EPS)


def _overlap(framed: Tensor, hop: int) -> Tensor:
    """[B, T, n] to [B, (T - 1) * hop + n]: frames summed, each `hop` later than the last."""
    rows, count, size = framed.shape
    parts = size // hop
    total = framed.new_zeros(rows, count + parts - 1, hop)
    for part in range(parts):
        total[:, part : part + count] += framed[:, :, part * hop : (part + 1) * hop]
    return total.flatten(1)
