"""The middle of SwiGLU."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _kernel(joined, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < WIDTH
    gate = tl.load(joined + token * 2 * WIDTH + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(joined + token * 2 * WIDTH + WIDTH + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + token * WIDTH + column, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=mask)


def gated_product(joined: Tensor, out: Tensor, *, block: int = BLOCK) -> None:
    """`out` [N, width] becomes silu(gate) * up, in fp32, of `joined` [N, 2 * width]: gate, then up. Contiguous."""
    tokens, width = out.shape
    block = min(block, triton.next_power_of_2(width))
    _kernel[(tokens, triton.cdiv(width, block))](joined, out, width, block, num_warps=max(block // 256, 1))
