"""Frames behind the two that a causal convolution of width 3 remembers, where its product reads them; made where the frames are normed."""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls

from __future__ import annotations

import msgspec
import torch
import triton
import triton.language as tl
from torch import Tensor

from vocoder_svc.minicpmo45.kernels.chain import chain, follow
from vocoder_svc.minicpmo45.kernels.norm import added_up, normalized, parts_of
from vocoder_svc.minicpmo45.kernels.tiles import RowTile, row_tile

CONTEXT = 2
"""Frames that a convolution sees before each."""


class Memory(msgspec.Struct, frozen=True):
    """The two frames before each sequence of a batch, and the two newest ones after it."""

    held: Tensor
    """[B, 2, 2 * width, 2], contiguous."""
    after: Tensor
    """The same, written."""
    fresh: Tensor
    """int64 [B]: frames of a sequence that count."""
    part: int
    """0: channels [0, width), 1: the others."""


@triton.jit(do_not_specialize=["tokens", "frames"])
def _join(
    branch,
    gate,
    scale,
    shift,
    kept,
    out,
    held,
    after,
    fresh,
    tokens,
    frames,
    eps,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    MISH: tl.constexpr,
    PARTS: tl.constexpr,
    CHAINED: tl.constexpr,
):
    follow(CHAINED)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = (row < tokens)[:, None] & (column < WIDTH)[None]
    place = row[:, None] * WIDTH + column[None]
    x = added_up(branch + place, inside, tokens, WIDTH, PARTS)
    if not MISH:
        x = x * tl.load(gate + column, column < WIDTH, other=0.0).to(tl.float32)[None] + tl.load(kept + place, inside, other=0.0)
        tl.store(kept + place, x, inside)
    factor = tl.load(scale + column, column < WIDTH, other=0.0).to(tl.float32)[None]
    added = tl.load(shift + column, column < WIDTH, other=0.0).to(tl.float32)[None]
    y = normalized(x, inside, WIDTH, eps) * factor + added
    if MISH:
        # x tanh(log(1 + e^x)) = x n / (n + 2), n = e^x (e^x + 2); above 20 it is x
        power = tl.exp(tl.minimum(y, 20.0))
        grown = power * (power + 2.0)
        y = y * (grown / (grown + 2.0))
    y = y.to(out.dtype.element_ty)
    frame, sequence = row % frames, row // frames
    # two frames of context stand in front of each sequence
    wide = out + (row + 2 * (sequence + 1))[:, None] * WIDTH + column[None]
    tl.store(wide, y, inside)
    front = inside & (frame == 0)[:, None]
    count = tl.load(fresh + sequence // 2, row < tokens, other=0)
    memory = sequence[:, None] * (4 * WIDTH) + 2 * column[None]
    for older in tl.static_range(2):
        tl.store(wide + (older - 2) * WIDTH, tl.load(held + memory + older, front, other=0.0).to(y.dtype), front)
    for newest in tl.static_range(2):
        # of the frames held and then the new ones, numbers count and count + 1
        number = count + newest
        old = front & (number < 2)[:, None]
        tl.store(after + memory + newest, tl.load(held + memory + number[:, None], old, other=0.0), old)
        tl.store(after + memory + newest, y.to(after.dtype.element_ty), inside & (frame == number - 2)[:, None])


def joined_norm(
    residual: Tensor,
    branch: Tensor,
    gate: Tensor,
    scale: Tensor,
    shift: Tensor,
    eps: float,
    dtype: torch.dtype,
    memory: Memory,
    frames: int,
    tile: RowTile | None = None,
) -> Tensor:
    """[B * 2, 2 + frames, width] of `dtype`: what is remembered of each sequence, then y = norm(x) * scale + shift with x = residual + gate
    * branch.

    residual fp32 [T, width] takes x; T = B * 2 * frames, sequence by sequence; the others as in `norm`.
    """
    return _launch(residual, branch, gate, scale, shift, eps, dtype, memory, frames, tile, mish=False)


def joined_mish(
    x: Tensor, scale: Tensor, shift: Tensor, eps: float, dtype: torch.dtype, memory: Memory, frames: int, tile: RowTile | None = None
) -> Tensor:
    """The same of y = mish(norm(x) * scale + shift) (arXiv 1908.08681); x [T, width] or [parts, T, width], to be summed, is only read."""
    return _launch(x, x, scale, scale, shift, eps, dtype, memory, frames, tile, mish=True)


def _launch(
    kept: Tensor,
    branch: Tensor,
    gate: Tensor,
    scale: Tensor,
    shift: Tensor,
    eps: float,
    dtype: torch.dtype,
    memory: Memory,
    frames: int,
    tile: RowTile | None,
    *,
    mish: bool,
) -> Tensor:
    tokens, width = branch.shape[-2:]
    cut = tile or row_tile(tokens)
    out = torch.empty(tokens // frames, CONTEXT + frames, width, dtype=dtype, device=branch.device)
    first = memory.part * width
    _join[(triton.cdiv(tokens, cut.rows),)](
        branch,
        gate,
        scale,
        shift,
        kept,
        out,
        memory.held[:, :, first:],
        memory.after[:, :, first:],
        memory.fresh,
        tokens,
        frames,
        eps,
        WIDTH=width,
        BLOCK=triton.next_power_of_2(width),
        ROWS=cut.rows,
        MISH=mish,
        PARTS=parts_of(branch),
        num_warps=cut.warps,
        **chain(),
    )
    return out


def unfolded_weight(weight: Tensor) -> Tensor:
    """[out, in, 3] of a convolution to [out, 3 * in] of the product."""
    return weight.transpose(1, 2).flatten(1).contiguous()
