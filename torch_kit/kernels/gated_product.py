"""The middle of SwiGLU."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from torch_kit.kernels.fp8 import narrowed_line

BLOCK = 1024


@triton.jit
def _kernel(joined, out, scales, WIDTH: tl.constexpr, BLOCK: tl.constexpr, NARROW: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < WIDTH
    gate = tl.load(joined + token * 2 * WIDTH + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(joined + token * 2 * WIDTH + WIDTH + column, mask=mask, other=0.0).to(tl.float32)
    value = gate * tl.sigmoid(gate) * up
    if NARROW:
        value, scale = narrowed_line(value)
        tl.store(scales + token, scale)
    tl.store(out + token * WIDTH + column, value.to(out.dtype.element_ty), mask=mask)


def gated_product(joined: Tensor, out: Tensor, *, scales: Tensor | None = None, block: int = BLOCK) -> None:
    """`out` [N, width] becomes silu(gate) * up, in fp32, of `joined` [N, 2 * width]: gate, then up. Contiguous.

    `scales` fp32 [N]: `out` is e4m3, each line rounded by its own (`fp8.narrowed`); a program has a whole line then.
    """
    tokens, width = out.shape
    whole, narrow = triton.next_power_of_2(width), scales is not None
    block = whole if narrow else min(block, whole)
    warps = min(max(block // 256, 1), 16)
    _kernel[(tokens, triton.cdiv(width, block))](joined, out, scales, width, block, narrow, num_warps=warps)
