"""The short-time Fourier transform of an excitation, and samples out of magnitudes and phases: both as sums over a handful of bins."""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from vocoder_svc.minicpmo45.kernels.conv import Counts, rounded
from vocoder_svc.minicpmo45.kernels.tiles import interpreted

FRAMES = 32
LEAST = tl.constexpr(1e-11)


@triton.jit(do_not_specialize_on_alignment=["sample_counts", "write_counts"])
def _spectrum(source, basis, out, sample_counts, write_counts, size, columns, sample_scale, write_scale, write_more,
              N: tl.constexpr, HOP: tl.constexpr, BINS: tl.constexpr, WIDE: tl.constexpr, FRAMES: tl.constexpr):  # fmt: skip
    b = tl.program_id(1)
    last = (tl.load(sample_counts + b) * sample_scale).to(tl.int32) - 1
    written = tl.minimum((tl.load(write_counts + b) * write_scale + write_more).to(tl.int32), columns)
    if tl.program_id(0) * FRAMES >= written:
        return
    t = tl.program_id(0) * FRAMES + tl.arange(0, FRAMES)
    bins = tl.arange(0, WIDE)
    total = tl.zeros((FRAMES, WIDE), dtype=tl.float32)
    for n in tl.static_range(N):
        place = tl.abs(t * HOP + (n - N // 2))
        place = tl.where(place > last, 2 * last - place, place)
        place = tl.minimum(tl.maximum(place, 0), size - 1)
        sample = tl.load(source + b.to(tl.int64) * size + place, t < written, other=0.0)
        total += sample[:, None] * tl.load(basis + n * BINS + bins, bins < BINS, other=0.0)[None]
    at = b.to(tl.int64) * columns * BINS + (t[:, None] * BINS + bins[None])
    tl.store(out + at, rounded(total, out.dtype.element_ty), (t < written)[:, None] & (bins < BINS)[None])


@triton.jit
def _samples(x, basis, squares, out, counts, columns, scale, more, largest, limit,
             N: tl.constexpr, HOP: tl.constexpr, BINS: tl.constexpr, WIDE: tl.constexpr, FRAMES: tl.constexpr):  # fmt: skip
    b = tl.program_id(1)
    counted = tl.minimum((tl.load(counts + b) * scale + more).to(tl.int32), columns)
    piece = tl.program_id(0) * FRAMES + tl.arange(0, FRAMES)
    bins, steps = tl.arange(0, WIDE), tl.arange(0, HOP)
    total = tl.zeros((FRAMES, HOP), dtype=tl.float32)
    weight = tl.zeros((FRAMES, HOP), dtype=tl.float32)
    for part in tl.static_range(N // HOP):
        t = piece + (N // 2 // HOP - part)
        seen = (t >= 0) & (t < counted)
        known = seen[:, None] & (bins < BINS)[None]
        at = b.to(tl.int64) * columns * 2 * BINS + (t[:, None] * (2 * BINS) + bins[None])
        magnitude = tl.minimum(tl.exp(tl.load(x + at, known, other=0.0)), largest, propagate_nan=tl.PropagateNan.ALL)
        angle = tl.sin(tl.load(x + at + BINS, known, other=0.0))
        real, imaginary = magnitude * tl.cos(angle), magnitude * tl.sin(angle)
        for step in tl.static_range(HOP):
            row = basis + (part * HOP + step) * 2 * BINS + bins
            of_real, of_imaginary = tl.load(row, bins < BINS, other=0.0), tl.load(row + BINS, bins < BINS, other=0.0)
            sample = tl.sum(real * of_real[None] + imaginary * of_imaginary[None], 1)
            here = (steps == step)[None] & seen[:, None]
            total += tl.where(here, sample[:, None], 0.0)
            weight += tl.where(here, tl.load(squares + part * HOP + step), 0.0)
    total = total / tl.maximum(weight, LEAST)
    total = tl.clamp(total, -limit, limit, propagate_nan=tl.PropagateNan.ALL)
    pieces = columns - 1
    at = b.to(tl.int64) * pieces * HOP + (piece[:, None] * HOP + steps[None])
    tl.store(out + at, total, (piece < pieces)[:, None] & (steps < HOP)[None])


def analysis(window: Tensor) -> Tensor:
    """fp32 [n, n + 2]: what each sample of a frame adds to the real parts, then to the imaginary ones, of its windowed spectrum."""
    angle = _angles(len(window), window.device)
    return (window.double()[:, None] * torch.cat((angle.cos(), -angle.sin()), 1)).float().contiguous()


def synthesis(window: Tensor) -> Tensor:
    """fp32 [n, n + 2]: what each real, then imaginary part adds to the windowed samples of a frame."""
    size = len(window)
    angle = _angles(size, window.device)
    twice = torch.full((size // 2 + 1,), 2.0 / size, device=window.device, dtype=torch.float64)
    twice[0] = twice[-1] = 1.0 / size
    return (window.double()[:, None] * torch.cat((twice * angle.cos(), -twice * angle.sin()), 1)).float().contiguous()


def _angles(size: int, device: torch.device) -> Tensor:
    place, order = (torch.arange(count, device=device, dtype=torch.float64) for count in (size, size // 2 + 1))
    return 2 * math.pi / size * place[:, None] * order


def spectrum(source: Tensor, basis: Tensor, hop: int, samples: Counts, columns: Counts, dtype: torch.dtype) -> Tensor:
    """fp32 [B, S], each row mirrored at its first sample and at the last of `samples`, to [B, S / hop + 1, n + 2]; `columns` of it are
    written. `basis`: that of `analysis`."""
    batch, size = source.shape
    count, bins = size // hop + 1, basis.shape[1]
    out = torch.empty(batch, count, bins, dtype=dtype, device=source.device)
    frames = 512 if interpreted() else FRAMES
    _spectrum[(triton.cdiv(count, frames), batch)](
        source, basis, out, samples.counts, columns.counts, size, count, samples.scale, columns.scale, columns.more,
        N=basis.shape[0], HOP=hop, BINS=bins, WIDE=triton.next_power_of_2(bins), FRAMES=frames,
    )  # fmt: skip
    return out


def sounded(x: Tensor, basis: Tensor, window: Tensor, hop: int, columns: Counts, largest: float, limit: float) -> Tensor:
    """Log magnitudes and phases fp32 [B, T, n + 2], of which `columns` count, to samples fp32 [B, (T - 1) * hop] within `limit`:
    overlap-add over the window's own sum of squares. `basis`: that of `synthesis`."""
    batch, count, bins = x.shape
    out = torch.empty(batch, (count - 1) * hop, device=x.device)
    frames = 512 if interpreted() else FRAMES
    _samples[(triton.cdiv(count - 1, frames), batch)](
        x, basis, window.square(), out, columns.counts, count, columns.scale, columns.more, largest, limit,
        N=basis.shape[0], HOP=hop, BINS=bins // 2, WIDE=triton.next_power_of_2(bins // 2), FRAMES=frames,
    )  # fmt: skip
    return out
