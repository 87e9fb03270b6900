"""HiFT of `hift.py` with channels last: each convolution is one kernel that also makes the operands of the next."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor
from torch.nn import functional

from minicpmo45.config import HiftConfig
from vocoder_svc.minicpmo45.fused_source import FusedSource
from vocoder_svc.minicpmo45.hift import F0_LAYERS, F0_LOOKAHEAD, FINAL_SLOPE, LARGEST_MAGNITUDE, PRE_LOOKAHEAD, SNAKE_EPS, Hift
from vocoder_svc.minicpmo45.kernels.conv import After, Counts, Precision, convolve
from vocoder_svc.minicpmo45.kernels.conv_mean import mean
from vocoder_svc.minicpmo45.kernels.conv_tiles import group_of
from vocoder_svc.minicpmo45.kernels.conv_weights import Conv, grouped, repeated, strided, transposed
from vocoder_svc.minicpmo45.kernels.spectrum import analysis, sounded, spectrum, synthesis
from vocoder_svc.minicpmo45.layers import Weights, within

ROWS_AT_ONCE = 32
"""Rows that are decoded together: enough to fill a card, and what lies between the convolutions stays small (18 MB a row)."""


class Blocks(msgspec.Struct, frozen=True):
    """Residual blocks that go together; one entry a pair of convolutions."""

    first: list[Conv]
    second: list[Conv]
    before: list[Tensor]
    """fp32 [blocks, 1, C]: of the snakes that the first ones read."""
    between: list[Tensor]


class Stage(msgspec.Struct, frozen=True):
    """What happens at one rate."""

    rise: Conv
    lower: Conv
    source: Blocks
    residual: Blocks


class FusedHift(Hift):
    """Same results as `Hift`, whose docstrings hold. `dtype`: of the convolutions' operands; sums, pitch, excitation and both transforms
    stay fp32. fp32 operands are rounded to TF32 (`tf32`), or multiplied thrice as that, which keeps fp32's accuracy."""

    def __init__(self, weights: Weights, config: HiftConfig, dtype: torch.dtype = torch.float32, *, tf32: bool = True) -> None:
        super().__init__(weights, config)
        self._dtype = dtype
        self._precision: Precision = "tf32" if tf32 else "tf32x3"
        self.source = FusedSource(weights, config, self.hop)
        self._unfolded = {layer: self._pitch[f"{layer}.weight"].transpose(1, 2).flatten(1).contiguous() for layer in F0_LAYERS}
        self._analysis, self._synthesis = analysis(self._window), synthesis(self._window)
        self._first = self._single("conv_pre", PRE_LOOKAHEAD if config.causal else None)
        self._last = self._single("conv_post", None)
        self._stages = [self._stage(stage) for stage in range(len(config.upsample_rates))]

    @torch.inference_mode()
    def pitch(self, mel: Tensor, frames: Tensor) -> Tensor:
        """In fp64 as the plain one, each layer as one product."""
        x, counted = mel.transpose(1, 2).to(self._head[0]), within(frames, mel.shape[2])[:, :, None]
        for layer in F0_LAYERS:
            kernel = self._pitch[f"{layer}.weight"].shape[2]
            ahead = (F0_LOOKAHEAD if layer == 0 else 0) if self.config.causal else kernel // 2
            x = functional.pad(torch.where(counted, x, 0.0), (0, 0, kernel - 1 - ahead, ahead))
            rows = x.unfold(1, kernel, 1).transpose(2, 3).flatten(2).flatten(0, 1)
            x = functional.elu(functional.linear(rows, self._unfolded[layer], self._pitch[f"{layer}.bias"]), inplace=True)
            x = x.view(*counted.shape[:2], -1)
        return functional.linear(x, *self._head).squeeze(2).abs().float()

    @torch.inference_mode()
    def decode(self, mel: Tensor, source: Tensor, frames: Tensor, decoded: Tensor) -> Tensor:
        if len(mel) <= ROWS_AT_ONCE:
            return self._decode(mel, source, frames, decoded)
        samples = torch.empty_like(source)
        for first in range(0, len(mel), ROWS_AT_ONCE):
            part = slice(first, first + ROWS_AT_ONCE)
            samples[part] = self._decode(mel[part], source[part], frames[part], decoded[part])
        return samples

    def _decode(self, mel: Tensor, source: Tensor, frames: Tensor, decoded: Tensor) -> Tensor:
        config, hop = self.config, self.config.istft_hop
        frames, decoded = frames.contiguous(), decoded.contiguous()
        size, columns = mel.shape[2], Counts(decoded, self.rate, 1)
        parts = spectrum(source.contiguous(), self._analysis, hop, Counts(frames, self.hop), columns, self._dtype)[None]
        x = mel.transpose(1, 2).to(self._dtype).contiguous()[None]
        here = Counts(decoded)
        _, x = self._run(x, self._first, Counts(frames), here, size, After(keep=False, slope=config.leaky_slope))
        scale = 1
        for stage, rate in zip(self._stages, config.upsample_rates, strict=True):
            scale *= rate
            last = int(scale == self.rate)
            before, here = here, Counts(decoded, scale, last)
            length = size * scale + last
            risen, _ = self._run(x, stage.rise, before, here, length, After(), shift=last)
            total, operands = self._run(parts, stage.lower, columns, here, length, After(alpha=stage.source.before[0]))
            total, operands = self._blocks_of(stage.source, total, operands, here, risen, _joint(stage.residual.before[0]))
            total, _ = self._blocks_of(stage.residual, total, operands, here)
            x = mean(total, here, FINAL_SLOPE if last else config.leaky_slope, self._dtype)[None]
        x, _ = self._run(x, self._last, columns, columns, size * self.rate + 1, After())
        return sounded(x[0], self._synthesis, self._window, hop, columns, LARGEST_MAGNITUDE, config.audio_limit)

    def _blocks_of(
        self, blocks: Blocks, total: Tensor, operands: Tensor, here: Counts, extra: Tensor | None = None, alpha: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Sums fp32 [blocks or 1, B, T, C] and the first operands to the sums after all pairs; with `extra` added to the last, and operands
        of it for `alpha`."""
        size, count = total.shape[2], len(blocks.first)
        into = None if len(total) < len(blocks.first[0].steps) else total
        for index, (first, second) in enumerate(zip(blocks.first, blocks.second, strict=True)):
            _, operands = self._run(operands, first, here, here, size, After(keep=False, alpha=blocks.between[index]))
            last = index == count - 1
            following = alpha if last else blocks.before[index + 1]
            after = After(alpha=following, residual=total, extra=extra if last else None, into=into)
            total, operands = self._run(operands, second, here, here, size, after)
            into = total
        return total, operands

    def _run(self, x: Tensor, conv: Conv, read: Counts, write: Counts, size: int, after: After, shift: int = 0) -> tuple[Tensor, Tensor]:
        return convolve(x, conv, read, write, size, after, SNAKE_EPS, shift=shift, precision=self._precision)

    def _ahead(self, taps: int, dilation: int = 1) -> int:
        return 0 if self.config.causal else (taps - 1) * dilation // 2

    def _single(self, name: str, ahead: int | None) -> Conv:
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        return grouped([weight], [bias], self._dtype, ahead=[self._ahead(weight.shape[2]) if ahead is None else ahead])

    def _stage(self, stage: int) -> Stage:
        config, weights = self.config, self._weights
        rate = config.upsample_rates[stage]
        lowered = math.prod(config.upsample_rates[stage + 1 :])
        left = 0 if lowered == 1 else lowered - 1 if config.causal else lowered // 2
        raised, lower = ((weights[f"{name}.{stage}.weight"], weights[f"{name}.{stage}.bias"]) for name in ("ups", "source_downs"))
        count = len(config.resblock_kernels)
        return Stage(
            (repeated if config.causal else transposed)(*raised, self._dtype, rate),
            strided(*lower, self._dtype, lowered, left),
            self._packed(self._source_blocks[stage : stage + 1]),
            self._packed(self._blocks[stage * count : (stage + 1) * count]),
        )

    def _packed(self, blocks: Sequence[Weights]) -> Blocks:
        def convolutions(name: str, dilations: Sequence[int]) -> list[Conv]:
            made = []
            for index, dilation in enumerate(dilations):
                weights = [block[f"{name}.{index}.weight"] for block in blocks]
                biases = [block[f"{name}.{index}.bias"] for block in blocks]
                ahead = [self._ahead(weight.shape[2], dilation) for weight in weights]
                group = group_of(weights[0].shape[0])
                made.append(grouped(weights, biases, self._dtype, ahead=ahead, dilation=dilation, group=group))
            return made

        def snakes(name: str) -> list[Tensor]:
            return [
                torch.stack([block[f"{name}.{index}.alpha"] for block in blocks])[:, None].contiguous() for index in range(len(dilations))
            ]

        dilations = self.config.resblock_dilations
        first, second = convolutions("convs1", dilations), convolutions("convs2", [1] * len(dilations))
        return Blocks(first, second, snakes("activations1"), snakes("activations2"))


def _joint(alpha: Tensor) -> Tensor:
    """[blocks, 1, C] to [1, blocks, C]: all are operands of one sum."""
    return alpha.transpose(0, 1).contiguous()
