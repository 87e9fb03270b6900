"""What a residual convolution of HiFT reads: the sum so far, snake, silence beyond each row's length, and padding, in one pass."""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vocoder_svc.minicpmo45.kernels.tiles import SnakeTile, snake_tile


@triton.jit
def _snake(
    x,
    bias,
    branch,
    kept,
    alpha,
    lengths,
    out,
    rows,
    channels,
    size,
    left,
    total,
    eps,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = row < rows
    length = tl.load(lengths + row // channels, known, other=0)
    rate = tl.load(alpha + row % channels, known, other=1.0)[:, None]
    column = (place - left)[None]
    there = known[:, None] & (column >= 0) & (column < size)
    source = row[:, None] * size + column
    value = tl.load(x + source, there, other=0.0)
    if BIASED:
        value += tl.load(bias + row % channels, known, other=0.0)[:, None]
    if ADDED:
        value += tl.load(branch + source, there, other=0.0)
        tl.store(kept + source, value, there)
    value = tl.where(there & (column < length[:, None]), value, 0.0)
    wave = tl.sin(value * rate)
    # of nothing it is nothing
    value = value + wave * wave / (rate + eps)
    tl.store(out + row[:, None] * total + place[None], value, known[:, None] & (place < total)[None])


def snake(
    x: Tensor,
    alpha: Tensor,
    lengths: Tensor,
    left: int,
    right: int,
    eps: float,
    *,
    bias: Tensor | None = None,
    branch: Tensor | None = None,
    kept: Tensor | None = None,
    tile: SnakeTile | None = None,
) -> Tensor:
    """y + sin(alpha y) ** 2 / (alpha + eps) with y = x + bias + branch before each row's length, 0 beyond, behind `left` zeros and before
    `right` ones (arXiv 2006.08195).

    x and branch (or none) fp32 [B, C, T], contiguous, alpha and bias (or none) fp32 [C], lengths int64 [B]; to [B, C, left + T + right].
    `kept`, with a branch: takes y, also beyond the lengths; may be x itself.
    """
    batch, channels, size = x.shape
    total = left + size + right
    cut = tile or snake_tile(total)
    out = torch.empty(batch, channels, total, device=x.device)
    _snake[(triton.cdiv(batch * channels, cut.rows), triton.cdiv(total, cut.columns))](
        x,
        alpha if bias is None else bias,
        x if branch is None else branch,
        x if kept is None else kept,
        alpha,
        lengths,
        out,
        batch * channels,
        channels,
        size,
        left,
        total,
        eps,
        ROWS=cut.rows,
        BLOCK=cut.columns,
        BIASED=bias is not None,
        ADDED=branch is not None,
        num_warps=cut.warps,
    )
    return out
