"""Matrix products: torch's own, or Triton's where an activation follows or where fp32 may be rounded to TF32."""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls

from __future__ import annotations

from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from vocoder_svc.minicpmo45.kernels.tiles import ProductTile, product_tile

Activation = Literal["none", "gelu", "silu"]
GROUP = 8
"""Programs that go down the rows before they go on to the next columns, so that weights are found in L2."""


@triton.jit
def _product(
    x,
    weight,
    bias,
    out,
    tokens,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
):
    program = tl.program_id(0)
    tall, broad = tl.cdiv(tokens, ROWS), tl.cdiv(OUTPUTS, COLUMNS)
    first = program // (GROUP * broad) * GROUP
    height = tl.minimum(tall - first, GROUP)
    within = program % (GROUP * broad)
    row = (first + within % height) * ROWS + tl.arange(0, ROWS)
    column = within // height * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, DEPTH)
    left = x + row.to(tl.int64)[:, None] * INPUTS + inner[None]
    right = weight + column.to(tl.int64)[None] * INPUTS + inner[:, None]
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for at in range(0, INPUTS, DEPTH):
        known = inner < INPUTS - at
        a = tl.load(left, (row < tokens)[:, None] & known[None], other=0.0)
        b = tl.load(right, (column < OUTPUTS)[None] & known[:, None], other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
        left += DEPTH
        right += DEPTH
    total += tl.load(bias + column, column < OUTPUTS, other=0.0).to(tl.float32)[None]
    if ACTIVATION == "gelu":
        # 0.5 x (1 + tanh z) = x sigmoid(2 z), z = sqrt(2 / pi) (x + 0.044715 x^3) (arXiv 1606.08415)
        total = total * tl.sigmoid(1.5957691216057308 * (total + 0.044715 * total * total * total))
    if ACTIVATION == "silu":
        total = total * tl.sigmoid(total)
    place = row.to(tl.int64)[:, None] * OUTPUTS + column[None]
    tl.store(out + place, total.to(out.dtype.element_ty), (row < tokens)[:, None] & (column < OUTPUTS)[None])


def product(
    x: Tensor, weight: Tensor, bias: Tensor, *, activation: Activation = "none", tf32: bool = False, dtype: torch.dtype | None = None
) -> Tensor:
    """activation(x weight^T + bias): x [T, in], weight [out, in], bias [out], to [T, out] of `dtype` (None: that of x).

    Sums are fp32. `tf32`: fp32 operands are rounded to TF32; otherwise Triton makes three such products, which keeps fp32's accuracy (arXiv
    2203.03341).
    """
    wanted = dtype or x.dtype
    if activation == "none" and wanted == x.dtype and not (tf32 and x.dtype == torch.float32):
        return functional.linear(x, weight, bias)
    return multiplied(x, weight, bias, activation=activation, tf32=tf32, dtype=wanted)


def multiplied(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    activation: Activation,
    tf32: bool,
    dtype: torch.dtype,
    tile: ProductTile | None = None,
) -> Tensor:
    """`product` by Triton; x and weight contiguous and of one dtype."""
    tokens, inputs = x.shape
    outputs = weight.shape[0]
    cut = tile or product_tile(tokens, outputs, x.element_size())
    out = torch.empty(tokens, outputs, dtype=dtype, device=x.device)
    _product[(triton.cdiv(tokens, cut.rows) * triton.cdiv(outputs, cut.columns),)](
        x,
        weight,
        bias,
        out,
        tokens,
        OUTPUTS=outputs,
        INPUTS=inputs,
        ROWS=cut.rows,
        COLUMNS=cut.columns,
        DEPTH=cut.depth,
        GROUP=GROUP,
        ACTIVATION=activation,
        PRECISION="tf32" if tf32 else "tf32x3",
        num_warps=cut.warps,
        num_stages=cut.stages,
    )
    return out
