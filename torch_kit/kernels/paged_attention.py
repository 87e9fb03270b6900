"""Attention of tiles of tokens over the pages of their rows, divided over the pages where tiles are few."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from torch_kit.kernels.page_list import listed
from torch_kit.kernels.paged_attention_fp8 import attend_fp8
from torch_kit.kernels.parts import combine
from torch_kit.ragged import RaggedBatch

_INTS = ["tiles", "pages", "starts", "stops", "orders", "prefix_pages", "order"]
_LEAST_LINES = 16
"""Of a matrix product on tensor cores."""
_SINGLE = ((64, 16), (256, 8), (384, 4), (512, 2))
"""Tiles times key heads up to so many: into how many parts; where tiles are single tokens."""
_MANY = ((64, 16), (256, 4), (512, 2))
_LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class Launch:
    """How the kernel is run. It never changes what comes out, but for rounding."""

    splits: int
    """Into so many parts a row's pages are divided, a power of two; 1: no combining."""
    warps: int
    stages: int


def launch(batch: RaggedBatch, heads: int, kv_heads: int, *, fp8: bool = False) -> Launch:
    """By the shape of the batch alone, and what pages hold. Raises ValueError: no tiles."""
    if batch.tiles is None:
        raise ValueError("batch: it has no tiles")
    programs = batch.tiles.size * kv_heads
    single = batch.tiles.longest == 1
    splits = next((splits for most, splits in (_SINGLE if single else _MANY) if programs <= most), 1)
    lines = batch.tiles.longest * heads // kv_heads
    if fp8 and single and splits <= 2:
        return Launch(1, warps=2, stages=3)
    return Launch(min(splits, triton.next_power_of_2(triton.cdiv(batch.pages.shape[1], 2))), warps=4 if lines <= 64 else 8, stages=3)


@triton.jit(do_not_specialize=["tokens"], do_not_specialize_on_alignment=_INTS)
def _attend(
    query, prefix_query, cache, out, partials, logs, tiles, pages, starts, stops, orders, prefix_pages, order, tokens, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD: tl.constexpr, PAGE: tl.constexpr, STRIDE: tl.constexpr,
    LINES: tl.constexpr, DIRECT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    size, splits = tl.num_programs(0), tl.num_programs(2)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    row = tl.load(tiles + tile)
    first = tl.load(tiles + size + tile)
    count = tl.load(tiles + 2 * size + tile)
    seen = tl.load(tiles + 3 * size + tile)
    if count == 0:
        return
    line = tl.arange(0, LINES)
    column = tl.arange(0, HEAD)
    key = tl.arange(0, PAGE)
    used = line < count * GROUP
    token = first + line // GROUP
    limit = tl.load(order + token, mask=used, other=-1)
    # [N, heads] of a line's query
    where = token.to(tl.int64) * HEADS + kv_head * GROUP + line % GROUP
    part = tl.cdiv(seen, splits)
    begin = split * part
    end = tl.minimum(begin + part, seen)
    border = tl.load(prefix_pages + row)
    table = row.to(tl.int64) * STRIDE
    top = tl.full((LINES,), float("-inf"), tl.float32)
    total = tl.zeros((LINES,), tl.float32)
    mixed = tl.zeros((LINES, HEAD), tl.float32)
    for region in tl.static_range(2):
        if region == 0:
            low, high = begin, tl.minimum(end, border)
            asked = prefix_query
        else:
            low, high = tl.maximum(begin, border), end
            asked = query
        asks = tl.load(asked + where[:, None] * HEAD + column[None, :], mask=used[:, None], other=0.0).to(cache.dtype.element_ty)
        # a page's numbers are read while the one before is worked on: the loads of keys and values shall not wait for them
        number, start, stop, before = listed(pages, starts, stops, orders, table + low, low < high)
        for index in range(low, high):
            held = (key >= start) & (key < stop)
            # what holds no token is never read, for freed pages may hold NaN
            place = cache + (number.to(tl.int64) * 2 * KV_HEADS + kv_head) * PAGE * HEAD + key[:, None] * HEAD + column[None, :]
            keys = tl.load(place, mask=held[:, None], other=0.0)
            scores = tl.dot(asks, tl.trans(keys), input_precision=PRECISION) * scale
            visible = held[None, :] & ((before + key - start)[None, :] <= limit[:, None])
            scores = tl.where(visible, scores, float("-inf"))
            peak = tl.maximum(top, tl.max(scores, 1))
            # a line that has seen nothing yet has no peak
            base = tl.where(peak == float("-inf"), 0.0, peak)
            shares = tl.exp2(scores - base[:, None])
            shrink = tl.exp2(top - base)
            total = total * shrink + tl.sum(shares, 1)
            values = tl.load(place + KV_HEADS * PAGE * HEAD, mask=held[:, None], other=0.0)
            mixed = mixed * shrink[:, None] + tl.dot(shares.to(values.dtype), values, input_precision=PRECISION)
            top = peak
            number, start, stop, before = listed(pages, starts, stops, orders, table + index + 1, index + 1 < high)
    # a line that sees nothing is zero
    mixed = mixed / tl.where(total != 0, total, 1.0)[:, None]
    if DIRECT:
        tl.store(out + where[:, None] * HEAD + column[None, :], mixed.to(out.dtype.element_ty), mask=used[:, None])
    else:
        where += split.to(tl.int64) * tokens * HEADS
        # a peak of nothing is the log of nothing, and what is not finite goes on as NaN
        tl.store(logs + where, top + tl.log2(tl.where(total != 0, total, 1.0)), mask=used)
        tl.store(partials + where[:, None] * HEAD + column[None, :], mixed, mask=(used & (total != 0))[:, None])


class PagedAttention:
    """Of batches of one shape: how it is launched, and the fp32 partial results where pages are split."""

    def __init__(
        self, batch: RaggedBatch, heads: int, kv_heads: int, head_dim: int, how: Launch | None = None, *, fp8: bool = False
    ) -> None:
        """`how`: instead of what `launch` chooses. Raises ValueError: no tiles."""
        self.how = how or launch(batch, heads, kv_heads, fp8=fp8)
        parts = self.how.splits if self.how.splits > 1 else 0
        device = batch.packed.device
        self._partials = torch.empty((parts, batch.size, heads, head_dim), device=device)
        self._logs = torch.empty((parts, batch.size, heads), device=device)

    def __call__(
        self,
        batch: RaggedBatch,
        query: Tensor,
        prefix_query: Tensor,
        cache: Tensor,
        out: Tensor,
        precision: str = "ieee",
        *,
        scales: Tensor | None = None,
    ) -> None:
        """`out` becomes the attention of `query`, which meets window pages, and `prefix_query`, which meets prefix pages, over `cache`.

        Queries and out [N, heads, head_dim]; `cache` [pages, 2, kv_heads, page, head_dim] of one layer, whose element type both products
        take, over fp8 fp16 (fp32 with fp32 queries); contiguous. `scales` [pages, 2, kv_heads, page]: of fp8 vectors, see `PagePool`.
        A token sees the valid tokens of its row's pages whose order is not above its own; one that sees nothing is 0.
        Softmax over score / sqrt(head_dim), accumulated in fp32 page by page (Milakov and Gimelshein's online form) and joined over parts
        by their log sums. `precision`: of fp32 products, "ieee" or "tf32". Raises ValueError: no tiles.
        """
        if batch.tiles is None:
            raise ValueError("batch: it has no tiles")
        tokens, heads, head_dim = query.shape
        kv_heads, page = cache.shape[2:4]
        tiles, splits = batch.tiles, self.how.splits
        lines = max(triton.next_power_of_2(tiles.longest * heads // kv_heads), _LEAST_LINES)
        # an fp8 kernel takes elements by twos
        kernel, caches = (_attend, (cache,)) if scales is None else (attend_fp8, (cache.view(torch.uint16), scales))
        last = () if scales is None else (query.dtype != torch.float32,)
        kernel[(tiles.size, kv_heads, splits)](
            query, prefix_query, *caches, out, self._partials, self._logs, tiles.table, batch.pages, batch.starts, batch.stops,
            tiles.orders, batch.prefix_pages, batch.order, tokens, head_dim**-0.5 * _LOG2_E, heads, kv_heads, head_dim, page,
            batch.pages.shape[1], lines, splits == 1, precision, *last, num_warps=self.how.warps, num_stages=self.how.stages,
        )  # fmt: skip
        if splits > 1:
            combine(self._partials, self._logs, out)
