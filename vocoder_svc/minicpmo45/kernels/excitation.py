"""Sines that follow summed phases, and noise, merged to one signal."""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls

from __future__ import annotations

import msgspec
import torch
import triton
import triton.language as tl
from torch import Tensor

from vocoder_svc.minicpmo45.kernels.tiles import interpreted

SAMPLES = 256
TURN = tl.constexpr(6.283185307179586)


@triton.jit
def _excite(f0, cycles, noise, begin, weight, bias, out, frames, table, threshold, amplitude, sigma,
            HOP: tl.constexpr, SINES: tl.constexpr, SMOOTH: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    b = tl.program_id(1).to(tl.int64)
    sample = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = sample < frames * HOP
    frame = tl.minimum(sample // HOP, frames - 1)
    place = (tl.load(begin + b) + sample) % table
    # the middle of a frame has its own value
    middle = tl.maximum((sample.to(tl.float64) + 0.5) / HOP - 0.5, 0.0)
    lower = tl.minimum(middle.to(tl.int32), frames - 1) if SMOOTH else frame
    upper, share = tl.minimum(lower + 1, frames - 1), middle - lower.to(tl.float64)
    voiced = tl.load(f0 + b * frames + frame, known, other=0.0) > threshold
    total = tl.zeros((BLOCK,), dtype=tl.float32) + tl.load(bias)
    for sine in tl.static_range(SINES):
        cycle = tl.load(cycles + (b * frames + lower) * SINES + sine, known, other=0.0)
        if SMOOTH:
            cycle = (1.0 - share) * cycle + share * tl.load(cycles + (b * frames + upper) * SINES + sine, known, other=0.0)
        wave = tl.sin((cycle - tl.floor(cycle)).to(tl.float32) * TURN) * amplitude
        hiss = tl.load(noise + place * SINES + sine, known, other=0.0)
        total += tl.load(weight + sine) * tl.where(voiced, wave + sigma * hiss, amplitude / 3 * hiss)
    tl.store(out + b * frames * HOP + sample, 2 * tl.sigmoid(2 * total) - 1, known)


class Levels(msgspec.Struct, frozen=True):
    """Hz above which a frame is voiced, the sines' amplitude, and the noise beside them."""

    threshold: float
    amplitude: float
    sigma: float


def excite(
    f0: Tensor, cycles: Tensor, noise: Tensor, begin: Tensor, weight: Tensor, bias: Tensor, hop: int, levels: Levels, *, smooth: bool
) -> Tensor:
    """f0 fp32 [B, W] and phases at its frames, fp64 [B, W, sines] in cycles, to fp32 [B, W * hop].

    `smooth`: phases are linear between the middles of frames; otherwise they hold for a whole frame. `noise` fp32 [N, sines] is read round
    and round from `begin` int64 [B] on; weight fp32 [1, sines] and bias fp32 [1] merge.
    """
    batch, frames = f0.shape
    out = torch.empty(batch, frames * hop, device=f0.device)
    block = 4096 if interpreted() else SAMPLES
    _excite[(triton.cdiv(frames * hop, block), batch)](
        f0, cycles, noise, begin, weight, bias, out, frames, len(noise), levels.threshold, levels.amplitude, levels.sigma,
        HOP=hop, SINES=cycles.shape[2], SMOOTH=smooth, BLOCK=block,
    )  # fmt: skip
    return out
