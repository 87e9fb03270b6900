"""Attention of a ragged batch over pages, in plain torch: the oracle of every faster kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from torch_kit.fp8 import widened
from torch_kit.ragged import RaggedBatch


class Attention(Protocol):
    """How queries meet pages. `plan` is made once a batch, `__call__` runs once a layer."""

    def plan(self, batch: RaggedBatch, page: int) -> Any:
        """What all layers share; `page` is the page size."""

    def __call__(self, plan: Any, query: Tensor, prefix_query: Tensor | None, cache: Tensor, scales: Tensor | None = None) -> Tensor:
        """[N, heads, head_dim] of queries of that shape over one layer's `cache` [pages, 2, kv_heads, page, head_dim].

        `prefix_query`: the same queries, rotated for prefix pages; None when no row has a gap. `scales`: of fp8 vectors, see `PagePool`.
        """


@dataclass(frozen=True, slots=True)
class PlainPlan:
    """Index and mask tensors; T = P * page."""

    pages: Tensor
    """[R, P]"""
    rows: Tensor
    local: Tensor
    longest: int
    unused: Tensor
    """[R, P, page, 1] what holds no token."""
    prefix: Tensor
    """[R, 1, T, 1]"""
    mask: Tensor
    """[R, 1, group * longest, T]"""


class PlainAttention:
    """Gathers each row's pages and runs scaled dot product attention in the dtype of the cache, over fp8 in that of the queries.

    `group`: query heads that share a key head. They are so many queries of it, since the fast kernels know no groups where a mask is given.
    """

    def __init__(self, group: int = 1) -> None:
        self._group = group

    def plan(self, batch: RaggedBatch, page: int) -> PlainPlan:
        """See Attention."""
        height, width = batch.pages.shape
        lengths = batch.stops - batch.starts
        before = lengths.cumsum(1) - lengths
        offsets = torch.arange(page, device=lengths.device, dtype=torch.int32)
        order = (before - batch.starts)[:, :, None] + offsets
        valid = (offsets >= batch.starts[:, :, None]) & (offsets < batch.stops[:, :, None])
        in_prefix = torch.arange(width, device=lengths.device)[None, :, None] < batch.prefix_pages[:, None, None]
        # the padding row has more tokens than places: they overwrite each other, and nobody reads them
        local = batch.local.clamp(max=batch.longest - 1)
        query_order = torch.full((height, batch.longest), -1, dtype=torch.int32, device=lengths.device)
        query_order[batch.rows, local] = batch.order
        mask = valid.flatten(1)[:, None] & (order.flatten(1)[:, None] <= query_order[:, :, None])
        # a query that sees nothing gets one zeroed key, for a softmax over nothing is NaN
        mask[:, :, 0] |= ~mask.any(-1)
        prefix = in_prefix.expand(height, width, page).flatten(1)
        grouped = mask[:, None].expand(-1, self._group, -1, -1).flatten(1, 2)
        return PlainPlan(batch.pages, batch.rows, local, batch.longest, ~valid[:, :, :, None], prefix[:, None, :, None], grouped[:, None])

    def __call__(self, plan: PlainPlan, query: Tensor, prefix_query: Tensor | None, cache: Tensor, scales: Tensor | None = None) -> Tensor:
        """See Attention."""
        head_dim, given = query.shape[2], query.dtype
        pages = cache.permute(1, 2, 0, 3, 4)[:, :, plan.pages]
        if scales is not None:
            pages = widened(pages, scales.permute(1, 2, 0, 3)[:, :, plan.pages], given)
        # what holds no token is zeroed, for freed pages may hold NaN
        pages = pages.masked_fill_(plan.unused, 0)
        query = query.to(pages.dtype)
        # [R, kv_heads, T, head_dim] each
        key, value = pages.flatten(3, 4).transpose(1, 2)
        dense = self._dense(query, plan)
        if prefix_query is not None:
            # both rotations in one product: each key meets its own half of the query, the other half is zero
            dense = torch.cat((dense, self._dense(prefix_query.to(pages.dtype), plan)), dim=-1)
            key = torch.cat((key.masked_fill(plan.prefix, 0), key.masked_fill(~plan.prefix, 0)), dim=-1)
        out = functional.scaled_dot_product_attention(dense, key, value, attn_mask=plan.mask, scale=head_dim**-0.5)
        return out.reshape(len(out), -1, plan.longest, head_dim).transpose(1, 2)[plan.rows, plan.local].to(given)

    def _dense(self, query: Tensor, plan: PlainPlan) -> Tensor:
        """[R, kv_heads, group * longest, head_dim] of the flat list [N, heads, head_dim]."""
        out = query.new_zeros((plan.pages.shape[0], plan.longest, *query.shape[1:]))
        out[plan.rows, plan.local] = query
        return out.transpose(1, 2).reshape(len(out), -1, self._group * plan.longest, query.shape[2])
