"""What a causal convolution of width 3 sees of each frame, laid out for one matrix product, made where the frames are normed."""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls

from __future__ import annotations

import msgspec
import torch
import triton
import triton.language as tl
from torch import Tensor

from vocoder_svc.minicpmo45.kernels.norm import normalized
from vocoder_svc.minicpmo45.kernels.tiles import RowTile, row_tile


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


@triton.jit
def _unfold(
    x_in,
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
):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = (row < tokens)[:, None] & (column < WIDTH)[None]
    place = row[:, None] * WIDTH + column[None]
    x = tl.load(x_in + place, inside, other=0.0).to(tl.float32)
    if not MISH:
        more = tl.load(branch + place, inside, other=0.0).to(tl.float32)
        x += more * tl.load(gate + column, column < WIDTH, other=0.0).to(tl.float32)[None]
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
    frame = row % frames
    wide = out + row[:, None] * (3 * WIDTH) + column[None]
    tl.store(wide + 2 * WIDTH, y, inside)
    tl.store(wide + 4 * WIDTH, y, inside & (frame + 1 < frames)[:, None])
    tl.store(wide + 6 * WIDTH, y, inside & (frame + 2 < frames)[:, None])
    front = inside & (frame == 0)[:, None]
    sequence = row // frames
    count = tl.load(fresh + sequence // 2, row < tokens, other=0)
    memory = sequence[:, None] * (4 * WIDTH) + 2 * column[None]
    tl.store(wide, tl.load(held + memory, front, other=0.0).to(y.dtype), front)
    newer = tl.load(held + memory + 1, front, other=0.0).to(y.dtype)
    tl.store(wide + WIDTH, newer, front)
    tl.store(wide + 3 * WIDTH, newer, front & (frame + 1 < frames)[:, None])
    for newest in tl.static_range(2):
        # of the frames held and then the new ones, numbers count and count + 1
        number = count + newest
        old = front & (number < 2)[:, None]
        tl.store(after + memory + newest, tl.load(held + memory + number[:, None], old, other=0.0), old)
        tl.store(after + memory + newest, y.to(after.dtype.element_ty), inside & (frame == number - 2)[:, None])


def unfold_norm(
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
    """[T, 3 * width] of `dtype`: of y = norm(x) * scale + shift with x = residual + gate * branch the frames t - 2, t - 1 and t of the
    token's sequence.

    residual fp32 [T, width] takes x; T = B * 2 * frames, sequence by sequence; the others as in `norm`.
    """
    return _launch(residual, branch, gate, scale, shift, eps, dtype, memory, frames, tile, mish=False)


def unfold_mish(x: Tensor, scale: Tensor, shift: Tensor, eps: float, memory: Memory, frames: int, tile: RowTile | None = None) -> Tensor:
    """The same of y = mish(norm(x) * scale + shift) (arXiv 1908.08681), x [T, width] being only read; in the dtype of `x`."""
    return _launch(x, x, scale, scale, shift, eps, x.dtype, memory, frames, tile, mish=True)


def _launch(
    x: Tensor,
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
    tokens, width = x.shape
    cut = tile or row_tile(tokens)
    out = torch.empty(tokens, 3 * width, dtype=dtype, device=x.device)
    first = memory.part * width
    _unfold[(triton.cdiv(tokens, cut.rows),)](
        x,
        branch,
        gate,
        scale,
        shift,
        x,
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
        num_warps=cut.warps,
    )
    return out


def unfolded_weight(weight: Tensor) -> Tensor:
    """[out, in, 3] of a convolution to [out, 3 * in] of the product."""
    return weight.transpose(1, 2).flatten(1).contiguous()
