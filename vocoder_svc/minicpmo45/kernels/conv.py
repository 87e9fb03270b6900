"""Convolutions over time with channels last, as products; what adds to the sum, and the operands of what reads it, in the same pass."""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls

from __future__ import annotations

from typing import Literal

import msgspec
import torch
import triton
import triton.language as tl
from torch import Tensor

from vocoder_svc.minicpmo45.kernels.conv_tiles import ConvTile, conv_tile
from vocoder_svc.minicpmo45.kernels.conv_weights import Conv

Precision = Literal["tf32", "tf32x3"]
INVERSE_PI = tl.constexpr(0.3183098861837907)
HALF_MOST = tl.constexpr(65504.0)
_SIZES = ("batch", "tall", "read_size", "write_size", "read_scale", "read_more", "write_scale", "write_more")
_PLAIN = [*_SIZES, "dilation", "left_0", "left_1", "left_2"]
"""Numbers that no address is aligned by: a kernel for each kind of them would be the same one, compiled again."""


@triton.jit
def rounded(value, dtype: tl.constexpr):
    if dtype == tl.float16:
        # too large is not infinite; NaN stays
        value = tl.clamp(value, -HALF_MOST, HALF_MOST, propagate_nan=tl.PropagateNan.ALL)
    return value.to(dtype)


@triton.jit
def _squared_sine(turns):
    """sin(pi turns) ** 2 to 3e-7: its series about the nearest whole number, since the library's sine takes registers that sums need."""
    turns -= tl.floor(turns + 0.5)
    square = turns * turns
    total = tl.full(square.shape, 0.01819142057127282, tl.float32)
    total = total * square + (-0.1410029842278955)
    total = total * square + 0.8571953555443356
    total = total * square + (-3.9517681856592324)
    total = total * square + 13.213128391687194
    total = total * square + (-30.12232068593832)
    total = total * square + 42.72840860334686
    total = total * square + (-32.46969701133414)
    total = total * square + 9.869604401089358
    return total * square


@triton.jit(do_not_specialize=_PLAIN, do_not_specialize_on_alignment=["read_counts", "write_counts"])
def _convolve(
    x,
    weight,
    bias,
    residual,
    extra,
    alpha,
    total,
    out,
    read_counts,
    write_counts,
    batch,
    tall,
    read_size,
    write_size,
    read_scale,
    read_more,
    write_scale,
    write_more,
    x_block,
    residual_block,
    offset,
    dilation,
    left_0,
    left_1,
    left_2,
    eps,
    slope,
    WIDTH: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    GROUP: tl.constexpr,
    RISE: tl.constexpr,
    APART: tl.constexpr,
    BLOCKS: tl.constexpr,
    STEPS_0: tl.constexpr,
    STEPS_1: tl.constexpr,
    STEPS_2: tl.constexpr,
    SHIFT: tl.constexpr,
    RESIDUAL: tl.constexpr,
    EXTRA: tl.constexpr,
    SUM: tl.constexpr,
    OPERANDS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    N: tl.constexpr = GROUP * OUTPUTS
    BROAD: tl.constexpr = (N + COLUMNS - 1) // COLUMNS
    CHUNKS: tl.constexpr = (INPUTS + DEPTH - 1) // DEPTH
    program = tl.program_id(0)
    column = program % BROAD
    tile = program // BROAD % tall
    rest = program // BROAD // tall
    b = rest % batch
    # the longest first
    block = BLOCKS - 1 - rest // batch
    steps, left, before = STEPS_0, left_0, 0
    if BLOCKS > 1:
        steps = tl.where(block == 0, STEPS_0, tl.where(block == 1, STEPS_1, STEPS_2))
        left = tl.where(block == 0, left_0, tl.where(block == 1, left_1, left_2))
        before = tl.where(block == 0, 0, tl.where(block == 1, STEPS_0, STEPS_0 + STEPS_1))
    read = tl.minimum((tl.load(read_counts + b) * read_scale + read_more).to(tl.int32), read_size)
    written = tl.minimum((tl.load(write_counts + b) * write_scale + write_more).to(tl.int32), write_size)
    i = tile * ROWS + tl.arange(0, ROWS)
    if RISE:
        begun = tile * ROWS * GROUP
        base, first, STEP = i, i * GROUP + SHIFT, 1
    else:
        begun = tile * ROWS // APART * (GROUP * APART)
        base = i // APART * (GROUP * APART) + i % APART
        first, STEP = base, APART
    if begun >= written:
        return
    n = column * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, DEPTH)
    source = x + block.to(tl.int64) * x_block + b.to(tl.int64) * read_size * WIDTH
    taps = weight + before * (N * INPUTS)
    value = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for step in range(steps * CHUNKS):
        tap = step // CHUNKS
        c = step % CHUNKS * DEPTH + inner
        row = base + tap * dilation - left
        if INPUTS == WIDTH:
            place = row[:, None] * INPUTS + c[None]
            known = ((row >= 0) & (row < read))[:, None]
        else:
            place = row[:, None] * INPUTS + c[None] + offset
            known = (place >= 0) & (place < read * WIDTH)
        if INPUTS % DEPTH != 0:
            known = known & (c < INPUTS)[None]
        held = (n < N)[None]
        if INPUTS % DEPTH != 0:
            held = held & (c < INPUTS)[:, None]
        a = tl.load(source + place, known, other=0.0)
        w = tl.load(taps + (tap * N + n)[None] * INPUTS + c[:, None], held, other=0.0)
        value = tl.dot(a, w, value, input_precision=PRECISION)
    o = n % OUTPUTS
    place = first[:, None] + (n // OUTPUTS * STEP)[None]
    there = (place < written) & (n < N)[None]
    size = write_size.to(tl.int64) * OUTPUTS
    at = place * OUTPUTS + o[None]
    here, many = b.to(tl.int64) * size, batch * size
    value += tl.load(bias + block * OUTPUTS + o)[None]
    if RESIDUAL:
        value += tl.load(residual + (block.to(tl.int64) * residual_block + here) + at, there, other=0.0)
    if EXTRA:
        value += tl.load(extra + here + at, there, other=0.0)
    if SUM:
        tl.store(total + (block * many + here) + at, value, there)
        if SHIFT > 0:
            # the first place mirrors the third
            tl.store(total + here + at - 2 * OUTPUTS, value, (place == 2) & (n < N)[None])
    for operand in tl.static_range(OPERANDS):
        if ACTIVATION == "snake":
            rate = tl.load(alpha + (block * OPERANDS + operand) * OUTPUTS + o)
            wave = _squared_sine(value * (rate * INVERSE_PI)[None])
            read_next = value + wave * (1.0 / (rate + eps))[None]
        else:
            read_next = tl.where(value > 0, value, value * slope)
        where = out + ((block * OPERANDS + operand) * many + here) + at
        tl.store(where, rounded(read_next, out.dtype.element_ty), there)


class Counts(msgspec.Struct, frozen=True):
    """Places of each row that count: counts int64 [B] times `scale`, and `more`."""

    counts: Tensor
    scale: int = 1
    more: int = 0


class After(msgspec.Struct, frozen=True):
    """What becomes of the sums.

    `alpha` fp32 [convolutions, operands, C]: operands y + sin(alpha y) ** 2 / (alpha + eps) (arXiv 2006.08195); None: one operand, y or
    slope * y where negative (`slope` None: no operand).
    """

    keep: bool = True
    alpha: Tensor | None = None
    slope: float | None = None
    residual: Tensor | None = None
    """fp32 [convolutions or 1, B, T, C], added first. Is written over where `into` is the same."""
    extra: Tensor | None = None
    """fp32 [B, T, C]."""
    into: Tensor | None = None
    """Takes the sums."""


def convolve(
    x: Tensor,
    conv: Conv,
    read: Counts,
    write: Counts,
    size: int,
    after: After,
    eps: float = 1e-9,
    *,
    shift: int = 0,
    precision: Precision = "tf32",
    tile: ConvTile | None = None,
) -> tuple[Tensor, Tensor]:
    """x [convolutions or 1, B, T, C] of the weight's dtype to (sums fp32 [convolutions, B, size, out], operands [convolutions * operands,
    B, size, out] of that dtype); empty what is not wanted.

    Places at or beyond `read` are zero, as are those before the first; places beyond `write` are left as they are. `shift`, with a
    convolution that rises: 1 puts all a place later and a copy of the third place first. Sums are fp32; fp32 operands are rounded as
    `precision` says (arXiv 2203.03341).
    """
    many, batch, held, width = x.shape
    blocks, outputs, inputs = len(conv.steps), conv.outputs, conv.inputs
    rows = held if conv.rise else triton.cdiv(size, conv.group * conv.dilation) * conv.dilation
    columns = conv.group * outputs
    cut = tile or conv_tile(blocks * batch * rows, columns, inputs, x.element_size())
    tall = triton.cdiv(rows, cut.rows)
    operands = 0 if after.alpha is None and after.slope is None else 1 if after.alpha is None else after.alpha.shape[1]
    shape = (batch, size, outputs)
    total = after.into if after.into is not None else torch.empty(blocks if after.keep else 0, *shape, device=x.device)
    out = torch.empty(blocks * operands, *shape, dtype=x.dtype, device=x.device)
    steps, left = (each + (0,) * (3 - blocks) for each in (conv.steps, conv.left))
    unused = conv.bias
    _convolve[(triton.cdiv(columns, cut.columns) * tall * batch * blocks,)](
        x,
        conv.weight,
        conv.bias,
        unused if after.residual is None else after.residual,
        unused if after.extra is None else after.extra,
        unused if after.alpha is None else after.alpha,
        total,
        out,
        read.counts,
        write.counts,
        batch,
        tall,
        held,
        size,
        read.scale,
        read.more,
        write.scale,
        write.more,
        0 if many == 1 else x.stride(0),
        0 if after.residual is None or len(after.residual) == 1 else after.residual.stride(0),
        conv.offset,
        conv.dilation,
        *left,
        eps,
        after.slope or 0.0,
        WIDTH=width,
        INPUTS=inputs,
        OUTPUTS=outputs,
        GROUP=conv.group,
        RISE=conv.rise,
        APART=conv.dilation if conv.group > 1 else 1,
        BLOCKS=blocks,
        STEPS_0=steps[0],
        STEPS_1=steps[1],
        STEPS_2=steps[2],
        SHIFT=shift,
        RESIDUAL=after.residual is not None,
        EXTRA=after.extra is not None,
        SUM=after.keep,
        OPERANDS=operands,
        ACTIVATION="leaky" if after.alpha is None else "snake",
        PRECISION=precision,
        ROWS=cut.rows,
        COLUMNS=cut.columns,
        DEPTH=cut.depth,
        num_warps=cut.warps,
        num_stages=cut.stages,
    )
    return total, out
