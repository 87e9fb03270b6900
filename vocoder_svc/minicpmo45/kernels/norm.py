"""Residual sum and layer norm in one pass: h + gate * branch, and its norm scaled and shifted."""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vocoder_svc.minicpmo45.kernels.chain import chain, follow
from vocoder_svc.minicpmo45.kernels.tiles import RowTile, row_tile


@triton.jit
def normalized(x, inside, width, eps):
    """Rows of a tile with mean 0 and variance 1 (arXiv 1607.06450, eq. 3); columns outside stay out of both."""
    mean = tl.sum(x, 1) / width
    centred = tl.where(inside, x - mean[:, None], 0.0)
    variance = tl.sum(centred * centred, 1) / width
    return centred * (1 / tl.sqrt(variance + eps))[:, None]


@triton.jit
def added_up(at, inside, tokens, WIDTH: tl.constexpr, PARTS: tl.constexpr):
    """The sum of a tile of [PARTS, tokens, WIDTH] over the parts."""
    total = tl.load(at, inside, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        total += tl.load(at + tokens * (part * WIDTH), inside, other=0.0).to(tl.float32)
    return total


@triton.jit(do_not_specialize=["tokens", "frames"])
def _norm(
    residual,
    branch,
    gate,
    scale,
    shift,
    kept,
    out,
    tokens,
    frames,
    eps,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    ADDED: tl.constexpr,
    GATED: tl.constexpr,
    SHARED: tl.constexpr,
    KEPT: tl.constexpr,
    PARTS: tl.constexpr,
    CHAINED: tl.constexpr,
):
    follow(CHAINED)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = (row < tokens)[:, None] & (column < WIDTH)[None]
    place = row[:, None] * WIDTH + column[None]
    x = tl.load(residual + place, inside, other=0.0).to(tl.float32)
    if ADDED:
        source = row
        if SHARED:
            source = row // (2 * frames) * frames + row % frames
        more = added_up(branch + source[:, None] * WIDTH + column[None], inside, tokens, WIDTH, PARTS)
        if GATED:
            more *= tl.load(gate + column, column < WIDTH, other=0.0).to(tl.float32)[None]
        x += more
    if KEPT:
        tl.store(kept + place, x, inside)
    factor = tl.load(scale + column, column < WIDTH, other=0.0).to(tl.float32)[None]
    added = tl.load(shift + column, column < WIDTH, other=0.0).to(tl.float32)[None]
    y = normalized(x, inside, WIDTH, eps) * factor + added
    tl.store(out + place, y.to(out.dtype.element_ty), inside)


def norm(
    residual: Tensor,
    scale: Tensor,
    shift: Tensor,
    eps: float,
    dtype: torch.dtype,
    *,
    branch: Tensor | None = None,
    gate: Tensor | None = None,
    kept: Tensor | None = None,
    shared_frames: int = 0,
    tile: RowTile | None = None,
) -> Tensor:
    """norm(x) * scale + shift with x = residual + gate * branch: [T, width] of `dtype`; sums are fp32.

    residual [T, width], any float; scale, shift, gate [width] (no gate: 1); branch [T, width], or [parts, T, width] to be summed, or none;
    kept fp32 [T, width], may be the residual itself: takes x. `shared_frames` M: a branch of [T / 2, width] serves both rows of each pair
    of M tokens.
    """
    tokens, width = residual.shape
    cut = tile or row_tile(tokens)
    out = torch.empty_like(residual, dtype=dtype)
    _norm[(triton.cdiv(tokens, cut.rows),)](
        residual,
        residual if branch is None else branch,
        scale if gate is None else gate,
        scale,
        shift,
        residual if kept is None else kept,
        out,
        tokens,
        max(shared_frames, 1),
        eps,
        WIDTH=width,
        BLOCK=triton.next_power_of_2(width),
        ROWS=cut.rows,
        ADDED=branch is not None,
        GATED=gate is not None,
        SHARED=shared_frames > 0,
        KEPT=kept is not None,
        PARTS=parts_of(branch),
        num_warps=cut.warps,
        **chain(),
    )
    return out


def parts_of(branch: Tensor | None) -> int:
    return branch.shape[0] if branch is not None and branch.dim() == 3 else 1
