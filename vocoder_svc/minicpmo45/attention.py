"""Attention over frames of an arena that each row names: a voice's shared prompt and the session's own ring, read where they lie."""

from __future__ import annotations

import functools
import math

import msgspec
import torch
from torch import Tensor
from torch.nn import functional


class Spans(msgspec.Struct, frozen=True):
    """A prompt, and a ring whose cell f % cells holds frame f of all that were made; told by lengths."""

    rows: Tensor
    """int64 [B, 5], contiguous: first frame of the prompt, frames of it, first cell of the ring, frames made so far, new ones."""
    cells: int
    """Frames of a ring."""
    kept: int
    """Newest frames made that are attended to, at most."""
    longest: int
    """At least the frames of every prompt."""
    chunk: int
    """M: most new frames."""

    def lists(self) -> Lists:
        """The same, frame by frame; K = longest + cells."""
        start, prompt, ring, made, fresh = self.rows[:, :, None].unbind(1)
        shared, cell, new = (torch.arange(count, device=start.device)[None] for count in (self.longest, self.cells, self.chunk))
        end = made + fresh
        frame = end - 1 - (end - 1 - cell) % self.cells
        oldest = made - made.clamp(max=self.kept)
        ringed = torch.where(frame >= oldest, prompt + frame - oldest, -1)
        spoken = torch.where(shared < prompt, shared, -1)
        return Lists(
            index=torch.cat((start + torch.minimum(shared, (prompt - 1).clamp(min=0)), ring + cell), 1),
            position=torch.cat((spoken, ringed), 1),
            write=torch.where(new < fresh, ring + (made + new) % self.cells, 0),
            query=prompt + made - oldest + new,
        )


class Lists(msgspec.Struct, frozen=True):
    """Frames one by one, in any order."""

    index: Tensor
    """int64 [B, K]: frames of the arena, new ones included."""
    position: Tensor
    """int64 [B, K]: place in the row's time line, closed up; below 0: not a key of this row, whatever lies there."""
    write: Tensor
    """int64 [B, M]: where new frame i goes; what is beyond the row's length goes to scratch."""
    query: Tensor
    """int64 [B, M]: place of new frame i."""


class Keys(msgspec.Struct, frozen=True, dict=True):
    """What each row of a batch attends to and where its new frames go, told in one way at least."""

    spans: Spans | None = None
    given: Lists | None = None

    @functools.cached_property
    def lists(self) -> Lists:
        """As given, or made of the spans when first asked for. Raises ValueError where there are neither."""
        if self.given is not None:
            return self.given
        if self.spans is None:
            raise ValueError("keys: neither spans nor lists")
        return self.spans.lists()


def store(arena: Tensor, keys: Keys, key: Tensor, value: Tensor) -> None:
    """Writes new frames into `arena` [K/V, ..., heads, F, dim] (one block's); `key` and `value` are [B, ..., heads, M, dim]."""
    fresh = torch.stack((key, value)).to(arena.dtype)
    # [K/V, B, ..., heads, M, dim] to [K/V, ..., heads, B * M, dim]
    fresh = fresh.movedim(1, -3).flatten(-3, -2)
    arena.index_copy_(arena.dim() - 2, keys.lists.write.flatten(), fresh)


def load(arena: Tensor, keys: Keys) -> tuple[Tensor, Tensor]:
    """Keys and values, each [B, ..., heads, K, dim] in the arena's dtype; zero where the row has none, so that no garbage reaches a sum."""
    rows, count = keys.lists.index.shape
    found = arena.index_select(arena.dim() - 2, keys.lists.index.flatten())
    found = found.reshape(*found.shape[:-2], rows, count, found.shape[-1]).movedim(-3, 1)
    seen = (keys.lists.position >= 0).view(rows, *[1] * (found.dim() - 4), count, 1)
    key, value = torch.where(seen, found, found.new_zeros(()))
    return key, value


def attend(query: Tensor, key: Tensor, value: Tensor, keys: Keys) -> Tensor:
    """Softmax attention without positions: `query` [B, ..., heads, M, dim] over all keys of the row, scaled by dim ** -0.5."""
    seen = (keys.lists.position >= 0).view(keys.lists.position.shape[0], *[1] * (query.dim() - 2), keys.lists.position.shape[1])
    return functional.scaled_dot_product_attention(query, key.to(query.dtype), value.to(query.dtype), attn_mask=seen)


def attend_relative(query_u: Tensor, query_v: Tensor, key: Tensor, value: Tensor, table: Tensor, keys: Keys) -> Tensor:
    """Attention with relative positions as in Transformer-XL (arXiv 1901.02860, 3.3).

    score(i, j) = (q_i + u) k_j + (q_i + v) p(i - j), over sqrt(dim). `query_u`, `query_v` [B, heads, M, dim]; `table` [heads, 2 * L - 1,
    dim] holds p of L - 1 down to 1 - L.
    """
    limit = (table.shape[1] + 1) // 2
    distance = keys.lists.query[:, :, None] - keys.lists.position[:, None, :].clamp(min=0)
    column = (limit - 1 - distance).clamp(0, table.shape[1] - 1)
    by_distance = query_v @ table.transpose(1, 2)
    relative = by_distance.gather(3, column[:, None].expand(-1, query_v.shape[1], -1, -1))
    scores = (query_u @ key.to(query_u.dtype).transpose(2, 3) + relative) / math.sqrt(query_u.shape[3])
    scores = scores.masked_fill((keys.lists.position < 0)[:, None, None], -math.inf)
    return scores.softmax(3) @ value.to(query_u.dtype)
