"""The attention of `paged_attention.py` over pages in e4m3 with one scale a vector.

Elements are read by twos, as uint16, so that they are copied and transposed like any of 16 bits; those of even and of odd columns are
operands of products of their own. They become fp16, where e4m3 is exact: two in one instruction; bf16 takes three of the slowest kind.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from torch_kit.kernels.fp8 import LARGEST
from torch_kit.kernels.page_list import listed

_INTS = ["tiles", "pages", "starts", "stops", "orders", "prefix_pages", "order"]
_UNPACK = tl.constexpr("""{
.reg .b16 first, second;
.reg .b32 a, b;
mov.b32 {first, second}, $2;
cvt.rn.f16x2.e4m3x2 a, first;
cvt.rn.f16x2.e4m3x2 b, second;
prmt.b32 $0, a, b, 0x5410;
prmt.b32 $1, a, b, 0x7632;
}""")


@triton.jit
def _unpacked(pairs, NARROW: tl.constexpr):
    """Lower and upper e4m3 of each uint16: fp16 if NARROW, else fp32."""
    if NARROW:
        low, high = tl.inline_asm_elementwise(_UNPACK, "=r,=r,r", [pairs], dtype=(tl.float16, tl.float16), is_pure=True, pack=2)
    else:
        low = (pairs & 255).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32)
        high = (pairs >> 8).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32)
    return low, high


@triton.jit(do_not_specialize=["tokens"], do_not_specialize_on_alignment=_INTS)
def attend_fp8(
    query, prefix_query, cache, scales, out, partials, logs, tiles, pages, starts, stops, orders, prefix_pages, order, tokens, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD: tl.constexpr, PAGE: tl.constexpr, STRIDE: tl.constexpr,
    LINES: tl.constexpr, DIRECT: tl.constexpr, PRECISION: tl.constexpr, NARROW: tl.constexpr,
):  # fmt: skip
    """As `_attend` of `paged_attention.py`. `cache`: uint16 [pages, 2, kv_heads, page, head_dim / 2]; NARROW: products are fp16."""
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    size, splits = tl.num_programs(0), tl.num_programs(2)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    HALF: tl.constexpr = HEAD // 2
    WIDE: tl.constexpr = tl.float16 if NARROW else tl.float32
    row = tl.load(tiles + tile)
    first = tl.load(tiles + size + tile)
    count = tl.load(tiles + 2 * size + tile)
    seen = tl.load(tiles + 3 * size + tile)
    if count == 0:
        return
    line = tl.arange(0, LINES)
    pair = tl.arange(0, HALF)
    key = tl.arange(0, PAGE)
    used = line < count * GROUP
    token = first + line // GROUP
    limit = tl.load(order + token, mask=used, other=-1)
    where = token.to(tl.int64) * HEADS + kv_head * GROUP + line % GROUP
    place = where[:, None] * HEAD + 2 * pair[None, :]
    part = tl.cdiv(seen, splits)
    begin = split * part
    end = tl.minimum(begin + part, seen)
    border = tl.load(prefix_pages + row)
    table = row.to(tl.int64) * STRIDE
    top = tl.full((LINES,), float("-inf"), tl.float32)
    total = tl.zeros((LINES,), tl.float32)
    even = tl.zeros((LINES, HALF), tl.float32)
    odd = tl.zeros((LINES, HALF), tl.float32)
    for region in tl.static_range(2):
        if region == 0:
            low, high = begin, tl.minimum(end, border)
            asked = prefix_query
        else:
            low, high = tl.maximum(begin, border), end
            asked = query
        asks = tl.load(asked + place, mask=used[:, None], other=0.0).to(WIDE)
        odd_asks = tl.load(asked + place + 1, mask=used[:, None], other=0.0).to(WIDE)
        number, start, stop, before = listed(pages, starts, stops, orders, table + low, low < high)
        for index in range(low, high):
            held = (key >= start) & (key < stop)
            vector = (number.to(tl.int64) * 2 * KV_HEADS + kv_head) * PAGE
            pairs = cache + vector * HALF + key[:, None] * HALF + pair[None, :]
            marks = scales + vector + key
            keys, odd_keys = _unpacked(tl.load(pairs, mask=held[:, None], other=0), NARROW)
            scores = tl.dot(asks, tl.trans(keys), input_precision=PRECISION)
            scores = tl.dot(odd_asks, tl.trans(odd_keys), scores, input_precision=PRECISION)
            scores *= tl.load(marks, mask=held, other=0.0)[None, :] * scale
            visible = held[None, :] & ((before + key - start)[None, :] <= limit[:, None])
            scores = tl.where(visible, scores, float("-inf"))
            peak = tl.maximum(top, tl.max(scores, 1))
            base = tl.where(peak == float("-inf"), 0.0, peak)
            shares = tl.exp2(scores - base[:, None])
            shrink = tl.exp2(top - base)
            total = total * shrink + tl.sum(shares, 1)
            values, odd_values = _unpacked(tl.load(pairs + KV_HEADS * PAGE * HALF, mask=held[:, None], other=0), NARROW)
            # times the vector's largest element: that is of order 1, and fp16 has no small numbers
            shares *= tl.load(marks + KV_HEADS * PAGE, mask=held, other=0.0)[None, :] * LARGEST
            even = tl.dot(shares.to(WIDE), values, even * shrink[:, None], input_precision=PRECISION)
            odd = tl.dot(shares.to(WIDE), odd_values, odd * shrink[:, None], input_precision=PRECISION)
            top = peak
            number, start, stop, before = listed(pages, starts, stops, orders, table + index + 1, index + 1 < high)
    whole = LARGEST * tl.where(total != 0, total, 1.0)[:, None]
    if DIRECT:
        tl.store(out + place, (even / whole).to(out.dtype.element_ty), mask=used[:, None])
        tl.store(out + place + 1, (odd / whole).to(out.dtype.element_ty), mask=used[:, None])
    else:
        where += split.to(tl.int64) * tokens * HEADS
        place += split.to(tl.int64) * tokens * HEADS * HEAD
        # as in `paged_attention`
        tl.store(logs + where, top + tl.log2(tl.where(total != 0, total, 1.0)), mask=used)
        tl.store(partials + place, even / whole, mask=(used & (total != 0))[:, None])
        tl.store(partials + place + 1, odd / whole, mask=(used & (total != 0))[:, None])
