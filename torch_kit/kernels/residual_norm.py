"""Residual sum and RMSNorm in one pass over the states."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from torch_kit.kernels.fp8 import narrowed_line


@triton.jit(do_not_specialize_on_alignment=["tokens"])
def _kernel(
    states, residual, weight, out, scales, tokens, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr, PICK: tl.constexpr, NARROW: tl.constexpr,
):  # fmt: skip
    line = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = column < WIDTH
    source = line.to(tl.int64)
    if PICK:
        source = tl.load(tokens + line).to(tl.int64)
    value = tl.load(states + source * WIDTH + column, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(residual + source * WIDTH + column, mask=mask, other=0.0).to(tl.float32)
    if not PICK:
        tl.store(residual + source * WIDTH + column, value.to(residual.dtype.element_ty), mask=mask)
    value *= tl.rsqrt(tl.sum(value * value, 0) / WIDTH + eps)
    value *= tl.load(weight + column, mask=mask, other=0.0).to(tl.float32)
    if NARROW:
        value, scale = narrowed_line(value)
        tl.store(scales + line, scale)
    tl.store(out + line.to(tl.int64) * WIDTH + column, value.to(out.dtype.element_ty), mask=mask)


def residual_norm(
    states: Tensor, residual: Tensor, weight: Tensor, out: Tensor, eps: float, *, first: bool = False, scales: Tensor | None = None
) -> None:
    """`residual` becomes residual + states, or states if `first`; `out` its RMSNorm. All [N, width] but `weight` [width]; contiguous.

    x / sqrt(mean(x^2) + eps) * weight in fp32, of the sum before it is rounded. `scales` fp32 [N]: `out` is e4m3, each line rounded by
    its own (`fp8.narrowed`).
    """
    _launch(states, residual, weight, out, scales, residual, eps, add=not first, pick=False)


def picked_norm(states: Tensor, residual: Tensor | None, weight: Tensor, out: Tensor, tokens: Tensor, eps: float) -> None:
    """`out` [S, width] becomes the RMSNorm of residual + states [N, width] of the tokens int32 [S] alone; nothing else changes.

    `residual` None: of the states.
    """
    _launch(states, residual, weight, out, None, tokens, eps, add=residual is not None, pick=True)


def _launch(
    states: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    out: Tensor,
    scales: Tensor | None,
    tokens: Tensor,
    eps: float,
    *,
    add: bool,
    pick: bool,
) -> None:
    lines, width = out.shape
    block = triton.next_power_of_2(width)
    warps = min(max(block // 512, 1), 8)
    narrow = scales is not None
    _kernel[(lines,)](states, residual, weight, out, scales, tokens, eps, width, block, add, pick, narrow, num_warps=warps)
