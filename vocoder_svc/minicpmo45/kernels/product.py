"""Matrix products: Triton's, which may round fp32 to TF32, be followed by an activation, read a convolution's frames or come in parts; or
torch's own."""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls

from __future__ import annotations

from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from vocoder_svc.minicpmo45.kernels.chain import chain, follow
from vocoder_svc.minicpmo45.kernels.tiles import CUBLAS, ProductTile, product_tile

Activation = Literal["none", "gelu", "silu"]
GROUP = 8
"""Programs that go down the rows before they go on to the next columns, so that weights are found in L2."""
MOST_HALF = 65504.0


@triton.jit(do_not_specialize=["tokens", "frames"])
def _product(
    x,
    weight,
    bias,
    out,
    tokens,
    frames,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    STRIDE: tl.constexpr,
    GAP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    SHARE: tl.constexpr,
    EVEN: tl.constexpr,
    GROUP: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    MOST: tl.constexpr,
    CHAINED: tl.constexpr,
):
    follow(CHAINED)
    program, part = tl.program_id(0), tl.program_id(1)
    tall, broad = tl.cdiv(tokens, ROWS), tl.cdiv(OUTPUTS, COLUMNS)
    first = program // (GROUP * broad) * GROUP
    height = tl.minimum(tall - first, GROUP)
    within = program % (GROUP * broad)
    row = (first + within % height) * ROWS + tl.arange(0, ROWS)
    column = within // height * COLUMNS + tl.arange(0, COLUMNS)
    source = row
    if GAP:
        source += row // frames * GAP
    inner = part * SHARE + tl.arange(0, DEPTH)
    left = x + source.to(tl.int64)[:, None] * STRIDE + inner[None]
    right = weight + column.to(tl.int64)[None] * INPUTS + inner[:, None]
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for at in range(0, SHARE, DEPTH):
        if EVEN:
            a = tl.load(left, (row < tokens)[:, None], other=0.0)
            b = tl.load(right, (column < OUTPUTS)[None], other=0.0)
        else:
            known = inner < INPUTS - at
            a = tl.load(left, (row < tokens)[:, None] & known[None], other=0.0)
            b = tl.load(right, (column < OUTPUTS)[None] & known[:, None], other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
        left += DEPTH
        right += DEPTH
    if part == 0:
        total += tl.load(bias + column, column < OUTPUTS, other=0.0).to(tl.float32)[None]
    if ACTIVATION == "gelu":
        # 0.5 x (1 + tanh z) = x sigmoid(2 z), z = sqrt(2 / pi) (x + 0.044715 x^3) (arXiv 1606.08415)
        total = total * tl.sigmoid(1.5957691216057308 * (total + 0.044715 * total * total * total))
    if ACTIVATION == "silu":
        total = total * tl.sigmoid(total)
    if out.dtype.element_ty == tl.float16:
        # too large is not infinite; NaN stays
        total = tl.clamp(total, -MOST, MOST, propagate_nan=tl.PropagateNan.ALL)
    place = (part * tokens + row).to(tl.int64)[:, None] * OUTPUTS + column[None]
    tl.store(out + place, total.to(out.dtype.element_ty), (row < tokens)[:, None] & (column < OUTPUTS)[None])


def product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    activation: Activation = "none",
    tf32: bool = False,
    dtype: torch.dtype | None = None,
    frames: int = 0,
    split: bool = False,
) -> Tensor:
    """activation(x weight^T + bias): x [T, in], weight [out, in], bias [out], to [T, out] of `dtype` (None: that of x).

    Sums are fp32; results beyond fp16's range are its largest values (of Triton's products), NaN stays NaN. `tf32`: fp32 operands are
    rounded to TF32; otherwise Triton makes three such products, which keeps fp32's accuracy (arXiv 2203.03341). `frames` M: x is [T / M,
    gap + M, width] and in = (gap + 1) * width: what is multiplied is each frame behind its `gap` frames of context, as a causal convolution
    does. `split`: the result may be [parts, T, out], fp32, to be summed by who reads it; `dtype` None and no activation then.
    """
    wanted = dtype or x.dtype
    tokens = x.shape[0] * frames if frames else x.shape[0]
    cublas = not frames and activation == "none" and wanted == x.dtype and not (tf32 and x.dtype == torch.float32)
    outputs, inputs = weight.shape
    cut = product_tile(tokens, outputs, inputs, x.element_size(), tf32=tf32, cublas=cublas, split=split)
    return multiplied(x, weight, bias, activation=activation, tf32=tf32, dtype=wanted, frames=frames, tile=cut)


def multiplied(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    activation: Activation,
    tf32: bool,
    dtype: torch.dtype,
    tile: ProductTile,
    frames: int = 0,
) -> Tensor:
    """`product` cut in one way; x and weight contiguous and of one dtype. CUBLAS: the result has that dtype, GELU (on CUDA) may follow."""
    if tile == CUBLAS:
        # cuBLAS has GELU, of the tanh, in its epilogue
        return torch._addmm_activation(bias, x, weight.t(), use_gelu=True) if activation == "gelu" else functional.linear(x, weight, bias)
    outputs, inputs = weight.shape
    tokens = x.shape[0] * frames if frames else x.shape[0]
    share = triton.cdiv(triton.cdiv(inputs, tile.parts), tile.depth) * tile.depth
    shape = (tile.parts, tokens, outputs) if tile.parts > 1 else (tokens, outputs)
    out = torch.empty(shape, dtype=torch.float32 if tile.parts > 1 else dtype, device=x.device)
    _product[(triton.cdiv(tokens, tile.rows) * triton.cdiv(outputs, tile.columns), tile.parts)](
        x,
        weight,
        bias,
        out,
        tokens,
        max(frames, 1),
        OUTPUTS=outputs,
        INPUTS=inputs,
        STRIDE=x.shape[-1],
        GAP=x.shape[1] - frames if frames else 0,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        SHARE=share,
        EVEN=share * tile.parts == inputs,
        GROUP=GROUP,
        ACTIVATION=activation,
        PRECISION="tf32" if tf32 else "tf32x3",
        MOST=MOST_HALF,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **chain(),
    )
    return out
