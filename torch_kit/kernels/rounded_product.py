"""Products of many lines that are rounded to e4m3, a line at a time, with a matrix in e4m3."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from torch_kit.kernels.fp8 import narrowed_line
from torch_kit.matrix import Matrix


@triton.jit
def _kernel(source, out, scales, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    line = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < WIDTH
    value, scale = narrowed_line(tl.load(source + line * WIDTH + column, mask=mask, other=0.0).to(tl.float32))
    tl.store(scales + line, scale)
    tl.store(out + line * WIDTH + column, value.to(out.dtype.element_ty), mask=mask)


def narrow_lines(source: Tensor, out: Tensor, scales: Tensor) -> None:
    """`out` e4m3 [N, width] and `scales` fp32 [N] become what `fp8.narrowed` gives of `source` [N, width]; contiguous."""
    lines, width = source.shape
    block = triton.next_power_of_2(width)
    _kernel[(lines,)](source, out, scales, width, block, num_warps=min(max(block // 512, 1), 8))


def rounded_product(source: Tensor, marks: Tensor, matrix: Matrix, out: Tensor, *, fast: bool = False) -> None:
    """`out` [N, wide] becomes source times the matrix transposed, each line times its mark and each column times its scale.

    `source` e4m3 [N, deep], `marks` fp32 [N]; `matrix` scaled, [wide, deep]; on CUDA deep and wide are multiples of 16. Tensor cores take
    them where out is bf16: sums are fp32, `fast`: of fewer bits, as those units have by themselves. Other types are multiplied in fp32.
    Contiguous.
    """
    assert matrix.scales is not None
    if not source.is_cuda or out.dtype != torch.bfloat16:
        exact = source.float() @ matrix.values.float().t()
        out.copy_(exact * marks[:, None] * matrix.scales)
        return
    torch._scaled_mm(
        source,
        matrix.values.t(),
        scale_a=marks[:, None],
        scale_b=matrix.scales[None, :],
        out_dtype=out.dtype,
        use_fast_accum=fast,
        out=out,
    )
