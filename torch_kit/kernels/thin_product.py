"""Products of a few lines with a matrix that is streamed once: with the norm before them and the gate or the residual sum behind them."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from torch_kit.matrix import Matrix

MOST_LINES = 128
"""Beyond so many a product is no matter of streaming."""
_TILE = 16
"""Fewest lines that tensor cores take."""
_MOST_BLOCKS = 4096
"""Of columns and lines, where a product is divided: each has a counter."""


_LEAST_WIDE = 512
"""Fewer columns are a matter of launches, not of streaming."""


@dataclass(frozen=True, slots=True)
class Thin:
    """How a product is run. It never changes what comes out, but for rounding."""

    columns: int
    """Of the outcome, for a program; a power of two."""
    chunk: int
    """Numbers of a column that are met at once, a power of two from 16 on."""
    splits: int = 1
    """Into so many parts a column is divided. The last part that ends adds all up, in their order."""
    warps: int = 4
    stages: int = 4
    dots: bool = True
    """On tensor cores; else multiplied and summed, which only one line is."""
    lines: int = _TILE
    """Of a program, a power of two from 16 on; the matrix is streamed once for each so many."""


def thin(lines: int, wide: int, deep: int, *, plain: bool, scaled: bool = False) -> Thin:
    """By the shape alone. `wide`: columns of the outcome; `deep`: numbers in each; `plain`: neither norm nor gate, so it may be divided.
    `scaled`: the matrix is in e4m3."""
    if scaled:
        return _thin_scaled(lines, wide, deep, plain=plain)
    whole = triton.next_power_of_2(deep)
    if lines == 1 and wide >= _LEAST_WIDE:
        if deep <= 1024:
            return Thin(2, whole, stages=1, dots=False)
        if not plain and wide < 8192:
            return Thin(4, 1024, stages=3, dots=False)
        return Thin(1, whole, stages=1, dots=False) if deep <= 4096 else Thin(4, 2048, stages=1, dots=False)
    tile = min(max(triton.next_power_of_2(lines), _TILE), 64)
    if tile > _TILE:
        splits, programs = 1, triton.cdiv(wide, 64) * triton.cdiv(lines, tile)
        while plain and splits < 8 and programs * splits < 96 and deep // splits >= 512:
            splits *= 2
        return Thin(64, min(64, whole), splits, lines=tile)
    if plain:
        return Thin(32 if deep <= 1024 else 64, min(128, whole), 4 if wide >= 2048 or deep <= 1024 else 8)
    return Thin(32, min(256, whole)) if deep <= 1024 else Thin(64 if wide < 8192 else 32, min(128, whole))


def _thin_scaled(lines: int, wide: int, deep: int, *, plain: bool) -> Thin:
    """Of e4m3, which is half as many bytes: a program takes more numbers at once."""
    whole = triton.next_power_of_2(deep)
    if lines == 1 and wide >= _LEAST_WIDE:
        if deep > 4096:
            return Thin(4, 4096, warps=8, stages=1, dots=False)
        if not plain and wide < 8192:
            return Thin(4, min(2048, whole), stages=3, dots=False)
        return Thin(2 if plain else 1, whole, stages=1, dots=False)
    tile = min(max(triton.next_power_of_2(lines), _TILE), 128)
    columns = 128 if plain and tile > _TILE else 64 if tile > _TILE or plain or wide < 8192 else 32
    splits, programs = 1, triton.cdiv(wide, columns) * triton.cdiv(lines, tile)
    while plain and splits < 8 and programs * splits < 128 and deep // splits >= 512:
        splits *= 2
    if tile > _TILE:
        return Thin(columns, min(128, whole), splits, warps=4 if columns * tile <= 4096 else 8, stages=3, lines=tile)
    return Thin(columns, min(256, whole), splits, stages=4)


@triton.jit
def _times(value, weight, total, DOTS: tl.constexpr, TURNED: tl.constexpr, SCALED: tl.constexpr, PRECISION: tl.constexpr):
    if SCALED and DOTS:
        # by way of fp32: from e4m3's fp16 to bf16 goes the slowest of the units that convert
        weight = weight.to(tl.float32).to(value.dtype)
    if TURNED:
        return tl.dot(weight, tl.trans(value), total, input_precision=PRECISION)
    elif DOTS:
        return tl.dot(value, tl.trans(weight), total, input_precision=PRECISION)
    else:
        return total + value.to(tl.float32) * weight.to(tl.float32)


@triton.jit
def _finish(made, residual, out, place, mask, ADD: tl.constexpr):
    if ADD:
        made += tl.load(residual + place, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + place, made.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["lines"])
def _kernel(
    source, norm, weight, scales, residual, out, partials, arrived, lines, eps,
    DEEP: tl.constexpr, WIDE: tl.constexpr, LINES: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr, SPLITS: tl.constexpr,
    STAGES: tl.constexpr, DOTS: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    # tensor cores take what comes from registers, as a matrix that is widened there does, on their left, from 64 lines on
    TURNED: tl.constexpr = SCALED and DOTS and LINES > 16
    block, split, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    line = tile * LINES + tl.arange(0, LINES)
    column = block * COLUMNS + tl.arange(0, COLUMNS)
    used, within = (line < lines)[:, None], (column < WIDE)[:, None]
    asked = source + line[:, None] * DEEP
    rows = weight + column.to(tl.int64)[:, None] * DEEP
    squares = tl.zeros((LINES, CHUNK), tl.float32)
    # one line is met by all columns at once, and summed in the end
    total = tl.zeros((LINES if DOTS and not TURNED else COLUMNS, LINES if TURNED else COLUMNS if DOTS else CHUNK), tl.float32)
    second = total
    PART: tl.constexpr = (DEEP + SPLITS * CHUNK - 1) // (SPLITS * CHUNK) * CHUNK
    begin = split * PART
    step = (begin + tl.arange(0, CHUNK))[None, :]
    factor = tl.load(norm + step, mask=step < DEEP, other=0.0).to(tl.float32) if NORM else 1.0
    for at in tl.range(begin, tl.minimum(begin + PART, DEEP), CHUNK, num_stages=STAGES):
        step = (at + tl.arange(0, CHUNK))[None, :]
        inside = tl.full((1, CHUNK), True, tl.int1) if EVEN else step < DEEP
        value = tl.load(asked + step, mask=used & inside, other=0.0)
        if NORM:
            # the scale of a line follows when all of it is summed
            squares += value.to(tl.float32) * value.to(tl.float32)
            value = (value.to(tl.float32) * factor).to(value.dtype)
            # read ahead, for nothing else hides how long that takes
            factor = tl.load(norm + step + CHUNK, mask=step + CHUNK < DEEP, other=0.0).to(tl.float32)
        total = _times(value, tl.load(rows + step, mask=within & inside, other=0.0), total, DOTS, TURNED, SCALED, PRECISION)
        if GATED:
            second = _times(
                value, tl.load(rows + WIDE * DEEP + step, mask=within & inside, other=0.0), second, DOTS, TURNED, SCALED, PRECISION
            )
    if not DOTS:
        total, second = tl.sum(total, 1)[None, :], tl.sum(second, 1)[None, :]
    if TURNED:
        total, second = tl.trans(total), tl.trans(second)
    if SCALED:
        total *= tl.load(scales + column, mask=column < WIDE, other=0.0)[None, :]
        if GATED:
            second *= tl.load(scales + WIDE + column, mask=column < WIDE, other=0.0)[None, :]
    if NORM:
        scale = tl.rsqrt(tl.sum(squares, 1) / DEEP + eps)[:, None]
        total *= scale
        second *= scale
    if GATED:
        total = total * tl.sigmoid(total) * second
    place = line[:, None] * WIDE + column[None, :]
    mask = used & (column < WIDE)[None, :]
    if SPLITS == 1:
        _finish(total, residual, out, place, mask, ADD)
    else:
        tl.store(partials + split * lines * WIDE + place, total, mask=mask)
        # all threads have stored before one of them says so
        tl.debug_barrier()
        if tl.atomic_add(arrived + tile * tl.num_programs(0) + block, 1, sem="acq_rel", scope="gpu") == SPLITS - 1:
            total = tl.zeros((LINES, COLUMNS), tl.float32)
            for part in tl.static_range(SPLITS):
                total += tl.load(partials + part * lines * WIDE + place, mask=mask, other=0.0, cache_modifier=".cg")
            _finish(total, residual, out, place, mask, ADD)
            tl.store(arrived + tile * tl.num_programs(0) + block, 0)


class ThinProducts:
    """Of one stream: the counters of divided products are shared by all that it runs."""

    def __init__(self, device: torch.device) -> None:
        self._arrived = torch.zeros(_MOST_BLOCKS, dtype=torch.int32, device=device)

    def __call__(
        self,
        source: Tensor,
        matrix: Matrix,
        out: Tensor,
        *,
        norm: Tensor | None = None,
        eps: float = 0.0,
        residual: Tensor | None = None,
        gated: bool = False,
        how: Thin | None = None,
        precision: str = "ieee",
    ) -> None:
        """`out` [N, wide] becomes `source` [N, deep] times `matrix` [wide, deep] transposed, summed in fp32; N is 1 to 128; contiguous.

        e4m3 is widened to the type of the source, exactly, and its scales are multiplied behind the sum.
        `norm` [deep]: the source is RMS-normed before, source / sqrt(mean(source^2) + eps) * norm. `gated`: `matrix` [2 wide, deep], gate
        and up, and out is silu(gate) * up. `residual` [N, wide]: is added; it may be `out` itself. `how`: instead of what `thin` chooses.
        `precision`: of fp32 products, "ieee" or "tf32". Raises ValueError: more lines, or several without dots; norm or gate of a divided
        product; too many blocks.
        """
        (lines, deep), wide = source.shape, out.shape[1]
        plain = norm is None and not gated
        how = how or thin(lines, wide, deep, plain=plain, scaled=matrix.scales is not None)
        blocks, tiles = triton.cdiv(wide, how.columns), triton.cdiv(lines, how.lines)
        if lines > MOST_LINES:
            raise ValueError(f"source: {lines} lines, not more than {MOST_LINES}")
        if how.splits > 1 and not (plain and blocks * tiles <= _MOST_BLOCKS):
            raise ValueError(f"how: {how.splits} splits of {blocks * tiles} blocks, or before a norm or gate")
        if lines > 1 and not how.dots:
            raise ValueError(f"how: {lines} lines without dots")
        partials = torch.empty((how.splits if how.splits > 1 else 0, lines, wide), device=source.device)
        _kernel[(blocks, how.splits, tiles)](
            source, norm, matrix.values, matrix.scales, residual, out, partials, self._arrived, lines, eps, deep, wide,
            how.lines if how.dots else 1, how.columns, how.chunk, how.splits, how.stages, how.dots, norm is not None, gated,
            residual is not None, deep % how.chunk == 0, precision, matrix.scales is not None, num_warps=how.warps,
        )  # fmt: skip
