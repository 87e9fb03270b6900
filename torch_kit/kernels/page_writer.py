"""From the joined projection to turned queries, and keys and values in their pages."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from torch_kit.kernels.fp8 import store_narrowed
from torch_kit.ragged import RaggedBatch
from torch_kit.rope import STRIDE, Rope

_INTS = ["positions", "prefix_positions", "slots"]


@triton.jit
def _turn(low, high, position, pair, HALF: tl.constexpr, STRIDE: tl.constexpr):
    """cos and sin of a position: the addition theorem over both tables."""
    near = low + (position % STRIDE) * 2 * HALF + pair
    far = high + (position // STRIDE) * 2 * HALF + pair
    near_cos, near_sin = tl.load(near), tl.load(near + HALF)
    far_cos, far_sin = tl.load(far), tl.load(far + HALF)
    return far_cos * near_cos - far_sin * near_sin, far_sin * near_cos + far_cos * near_sin


@triton.jit(do_not_specialize_on_alignment=_INTS)
def _kernel(
    joined, norm, low, high, positions, prefix_positions, slots, query, prefix_query, cache, scales, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, PAGE: tl.constexpr, STRIDE: tl.constexpr,
    BLOCK: tl.constexpr, NORM: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[:, None]
    pair = tl.arange(0, HALF)[None, :]
    ALL: tl.constexpr = HEADS + 2 * KV_HEADS
    HEAD: tl.constexpr = 2 * HALF
    source = joined + (token * ALL + head) * HEAD + pair
    first = tl.load(source, mask=head < ALL, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=head < ALL, other=0.0).to(tl.float32)
    is_query = head < HEADS
    is_key = (head >= HEADS) & (head < HEADS + KV_HEADS)
    is_value = (head >= HEADS + KV_HEADS) & (head < ALL)
    slot = tl.load(slots + token)
    page = (slot // PAGE).to(tl.int64)
    # keys and values of a page lie one behind the other, as they do in the projection
    vector = (page * 2 * KV_HEADS + head - HEADS) * PAGE + slot % PAGE
    place = cache + vector * HEAD + pair
    if SCALED:
        store_narrowed(place, scales + vector, first, second, HALF, is_value)
    else:
        tl.store(place, first.to(cache.dtype.element_ty), mask=is_value)
        tl.store(place + HALF, second.to(cache.dtype.element_ty), mask=is_value)
    if NORM:
        scale = tl.rsqrt((tl.sum(first * first, 1) + tl.sum(second * second, 1))[:, None] / HEAD + eps)
        weight = norm + head * HEAD + pair
        first *= scale * tl.load(weight, mask=is_query | is_key, other=0.0).to(tl.float32)
        second *= scale * tl.load(weight + HALF, mask=is_query | is_key, other=0.0).to(tl.float32)
    cos, sin = _turn(low, high, tl.load(positions + token), pair, HALF, STRIDE)
    left, right = first * cos - second * sin, second * cos + first * sin
    if SCALED:
        store_narrowed(place, scales + vector, left, right, HALF, is_key)
    else:
        tl.store(place, left.to(cache.dtype.element_ty), mask=is_key)
        tl.store(place + HALF, right.to(cache.dtype.element_ty), mask=is_key)
    target = (token * HEADS + head) * HEAD + pair
    tl.store(query + target, left.to(query.dtype.element_ty), mask=is_query)
    tl.store(query + target + HALF, right.to(query.dtype.element_ty), mask=is_query)
    cos, sin = _turn(low, high, tl.load(prefix_positions + token), pair, HALF, STRIDE)
    left, right = first * cos - second * sin, second * cos + first * sin
    tl.store(prefix_query + target, left.to(query.dtype.element_ty), mask=is_query)
    tl.store(prefix_query + target + HALF, right.to(query.dtype.element_ty), mask=is_query)


def write_pages(
    joined: Tensor, norm: Tensor | None, rope: Rope, batch: RaggedBatch, query: Tensor, prefix_query: Tensor, cache: Tensor, eps: float,
    scales: Tensor | None = None, *, block: int = 0,
) -> None:  # fmt: skip
    """Queries turned by position and by prefix position [N, heads, head_dim] each; keys, turned, and values in the slots of `cache`.

    `joined` [N, (heads + 2 kv_heads) * head_dim]; `norm` [heads + kv_heads, head_dim]: weights of the RMSNorm of queries and keys before
    they are turned, None: no norm; `cache` [pages, 2, kv_heads, page, head_dim] of one layer, `scales` [pages, 2, kv_heads, page] of its
    vectors if they are fp8 (see `PagePool`). Contiguous; fp32 between reading and writing.
    `block`: heads of a program, a power of two; 0: chosen by N.
    """
    tokens, heads, head_dim = query.shape
    kv_heads, page = cache.shape[2:4]
    block = block or (8 if tokens <= 128 else 16)
    grid = (tokens, triton.cdiv(heads + 2 * kv_heads, block))
    _kernel[grid](
        joined, norm, rope.low, rope.high, batch.positions, batch.prefix_positions, batch.slots, query, prefix_query, cache,
        cache if scales is None else scales, eps, heads, kv_heads, head_dim // 2, page, STRIDE, block, norm is not None, scales is not None,
        num_warps=max(block * head_dim // 512, 1),
    )  # fmt: skip
