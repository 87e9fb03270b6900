"""The mean of a stage's residual blocks behind a leaky ReLU: the operand of what comes next."""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vocoder_svc.minicpmo45.kernels.conv import Counts, rounded
from vocoder_svc.minicpmo45.kernels.tiles import interpreted

BLOCK = 2048


@triton.jit
def _mean(x, out, counts, size, scale, more, many, slope, WIDTH: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    b = tl.program_id(1).to(tl.int64)
    counted = tl.minimum((tl.load(counts + b) * scale + more).to(tl.int32), size) * WIDTH
    if tl.program_id(0) * BLOCK >= counted:
        return
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = b * size * WIDTH + place
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for part in tl.static_range(PARTS):
        total += tl.load(x + part * many + at, place < counted, other=0.0)
    total = total / PARTS
    tl.store(out + at, rounded(tl.where(total > 0, total, total * slope), out.dtype.element_ty), place < counted)


def mean(x: Tensor, counts: Counts, slope: float, dtype: torch.dtype) -> Tensor:
    """fp32 [parts, B, T, C] to [B, T, C] of `dtype`: y, or slope * y where negative, of the mean y. Places beyond `counts` are left as they
    are."""
    parts, batch, size, width = x.shape
    out = torch.empty(batch, size, width, dtype=dtype, device=x.device)
    block = 1 << 15 if interpreted() else BLOCK
    _mean[(triton.cdiv(size * width, block), batch)](
        x, out, counts.counts, size, counts.scale, counts.more, x.stride(0), slope, WIDTH=width, PARTS=parts, BLOCK=block, num_warps=8
    )
    return out
