"""One attention from parts that saw other keys: joined over their log sums."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit(do_not_specialize=["lines"])
def _combine(partials, logs, out, lines, HEAD: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    line = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, HEAD)
    mask = line < lines
    top = tl.full((BLOCK,), float("-inf"), tl.float32)
    for split in tl.static_range(SPLITS):
        top = tl.maximum(top, tl.load(logs + split * lines + line, mask=mask, other=float("-inf")))
    top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.zeros((BLOCK,), tl.float32)
    mixed = tl.zeros((BLOCK, HEAD), tl.float32)
    for split in tl.static_range(SPLITS):
        share = tl.exp2(tl.load(logs + split * lines + line, mask=mask, other=float("-inf")) - top)
        # parts that saw nothing were not written
        part = tl.load(partials + (split * lines + line)[:, None] * HEAD + column[None, :], mask=(share > 0)[:, None], other=0.0)
        total += share
        mixed += part * share[:, None]
    mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out + line[:, None] * HEAD + column[None, :], mixed.to(out.dtype.element_ty), mask=mask[:, None])


def combine(partials: Tensor, logs: Tensor, out: Tensor) -> None:
    """`out` [lines, head_dim], of any shape that holds as much: sum of 2^log x part over sum of 2^log; 0 where every log is -inf.

    partials fp32 [splits, lines, head_dim], where the log is -inf it is not read; logs fp32 [splits, lines], base 2; contiguous.
    """
    splits, head_dim = partials.shape[0], partials.shape[-1]
    lines = out.numel() // head_dim
    block = 4 if lines <= 4096 else 16
    _combine[(triton.cdiv(lines, block),)](partials, logs, out, lines, head_dim, splits, block, num_warps=block // 4)
