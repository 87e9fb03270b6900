"""Residual sum and layer norm in one pass over the states."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_ONE_EACH = 2048
"""Up to so many lines a program has one: there are more multiprocessors than lines to share."""


@triton.jit(do_not_specialize=["lines"])
def _kernel(
    states, residual, weight, bias, out, lines, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, LINES: tl.constexpr, ADD: tl.constexpr
):  # fmt: skip
    line = tl.program_id(0).to(tl.int64) * LINES + tl.arange(0, LINES)
    column = tl.arange(0, BLOCK)
    inside = (line < lines)[:, None] & (column < WIDTH)[None, :]
    place = line[:, None] * WIDTH + column[None, :]
    value = tl.load(states + place, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(residual + place, value.to(residual.dtype.element_ty), mask=inside)
    centred = tl.where(inside, value - (tl.sum(value, 1) / WIDTH)[:, None], 0.0)
    centred *= tl.rsqrt(tl.sum(centred * centred, 1) / WIDTH + eps)[:, None]
    scale = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    shift = tl.load(bias + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    tl.store(out + place, (centred * scale[None, :] + shift[None, :]).to(out.dtype.element_ty), mask=inside)


def residual_layer_norm(
    states: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, out: Tensor, eps: float, *, first: bool = False, lines: int = 0
) -> None:
    """`residual` becomes residual + states, or states if `first`; `out` its layer norm. [N, width] but weight and bias [width]; contiguous.

    (x - mean) / sqrt(variance + eps) * weight + bias (arXiv 1607.06450) in fp32, of the sum before it is rounded. `lines`: of a program, a
    power of two; 0: chosen by N.
    """
    count, width = out.shape
    lines = lines or (1 if count <= _ONE_EACH else 4)
    block = triton.next_power_of_2(width)
    warps = min(max(block // 512, 1) * lines, 8)
    _kernel[(triton.cdiv(count, lines),)](states, residual, weight, bias, out, count, eps, width, block, lines, not first, num_warps=warps)
