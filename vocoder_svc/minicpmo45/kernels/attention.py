"""Attention over a voice's prompt, the session's ring and the new frames, each read where it lies; new keys and values go into the
ring."""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls

from __future__ import annotations

import math

import msgspec
import torch
import triton
import triton.language as tl
from torch import Tensor

from vocoder_svc.minicpmo45.attention import Spans
from vocoder_svc.minicpmo45.kernels.chain import chain, follow
from vocoder_svc.minicpmo45.kernels.norm import normalized
from vocoder_svc.minicpmo45.kernels.tiles import AttentionTile, attention_tile

NEW_KEYS = 64
"""New keys that a program takes at a time, at most."""


class HeadNorms(msgspec.Struct, frozen=True):
    """Layer norms over the dimensions of each head."""

    parameters: Tensor
    """[4, dim], contiguous: scale and shift of queries, scale and shift of keys."""
    eps: float


class Distances(msgspec.Struct, frozen=True):
    """What is added to a score by the distance of query and key."""

    values: Tensor
    """[heads, T, distances]: column c is of distance zero - c."""
    zero: int


@triton.jit
def _head_norm(x, inside, norm, eps, DIM: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    factor = tl.load(norm + column, column < DIM, other=0.0).to(tl.float32)[None]
    added = tl.load(norm + DIM + column, column < DIM, other=0.0).to(tl.float32)[None]
    return (normalized(x.to(tl.float32), inside, DIM, eps) * factor + added).to(x.dtype)


@triton.jit
def _meet(total, weight, highest, query, key, value, seen, more, scale, PRECISION: tl.constexpr):
    """Running softmax over one more block of keys (arXiv 2112.05682): sums scaled to the highest score so far, scores in base 2."""
    scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) + more
    scores = tl.where(seen[None], scores * scale, float("-inf"))
    top = tl.maximum(highest, tl.max(scores, 1))
    # a row that has seen no key yet
    base = tl.where(top == float("-inf"), 0.0, top)
    share = tl.exp2(scores - base[:, None])
    shrunk = tl.exp2(highest - base)
    total = tl.dot(share.to(value.dtype), value, total * shrunk[:, None], input_precision=PRECISION)
    return total, weight * shrunk + tl.sum(share, 1), top


@triton.jit
def _by_distance(relative, column, inside, RELATIVE: tl.constexpr):
    """What is added to scores; `relative` points at each query's row."""
    if RELATIVE:
        return tl.load(relative[:, None] + column, inside, other=0.0).to(tl.float32)
    else:
        return 0.0


@triton.jit
def _fresh(
    own, place, known, norms, eps, DIM: tl.constexpr, BLOCK: tl.constexpr, NEXT: tl.constexpr, STRIDE: tl.constexpr, NORMED: tl.constexpr
):
    """Keys and values of new frames, out of the product that made them."""
    inside = known[:, None] & (tl.arange(0, BLOCK) < DIM)[None]
    at = own + place[:, None] * STRIDE
    key = tl.load(at + NEXT, inside, other=0.0)
    value = tl.load(at + 2 * NEXT, inside, other=0.0)
    if NORMED:
        key = _head_norm(key, inside, norms + 2 * DIM, eps, DIM, BLOCK)
    return key, value


@triton.jit(do_not_specialize=["tokens", "frames", "held_frames", "cells", "kept_most", "columns", "zero"])
def _attend(
    qkv,
    arena,
    spans,
    out,
    norms,
    distances,
    tokens,
    frames,
    held_frames,
    cells,
    kept_most,
    columns,
    zero,
    eps,
    scale,
    GUIDED: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    NEW: tl.constexpr,
    NORMED: tl.constexpr,
    RELATIVE: tl.constexpr,
    ALL: tl.constexpr,
    PRECISION: tl.constexpr,
    CHAINED: tl.constexpr,
):
    follow(CHAINED)
    sequence, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    # frames of one arena are far fewer than 2^31
    span = spans + sequence // GUIDED * 5
    start, prompt, ring = tl.load(span).to(tl.int32), tl.load(span + 1).to(tl.int32), tl.load(span + 2).to(tl.int32)
    made, fresh = tl.load(span + 3).to(tl.int32), tl.load(span + 4).to(tl.int32)
    kept = tl.minimum(made, kept_most)
    known = prompt + kept
    oldest, next_cell = (made - kept) % cells, made % cells
    column = tl.arange(0, BLOCK)[None]
    width: tl.constexpr = HEADS * DIM
    stride: tl.constexpr = PARTS * HEADS * DIM
    first = sequence.to(tl.int64) * frames
    own = qkv + first * stride + head * DIM + column
    keys = arena + (sequence % GUIDED * HEADS + head).to(tl.int64) * held_frames * DIM + column
    values = keys + tl.full((), GUIDED * HEADS, tl.int64) * held_frames * DIM
    asking = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    asked = (asking < frames)[:, None] & (column < DIM)
    query = tl.load(own + asking[:, None] * stride, asked, other=0.0)
    if NORMED:
        query = _head_norm(query, asked, norms, eps, DIM, BLOCK)
    # the program's own frames, to be remembered
    lasting = asking < tl.minimum(fresh, frames)
    own_key, own_value = _fresh(own, asking, lasting, norms, eps, DIM, BLOCK, width, stride, NORMED)
    own_key, own_value = own_key.to(arena.dtype.element_ty), own_value.to(arena.dtype.element_ty)
    cell = next_cell + asking
    cell = (ring + tl.where(cell < cells, cell, cell - cells))[:, None] * DIM
    tl.store(keys + cell, own_key, lasting[:, None] & asked)
    tl.store(values + cell, own_value, lasting[:, None] & asked)

    relative = distances + (head.to(tl.int64) * tokens + first + asking) * columns + zero
    total = tl.zeros((QUERIES, BLOCK), dtype=tl.float32)
    weight = tl.zeros((QUERIES,), dtype=tl.float32)
    highest = tl.full((QUERIES,), float("-inf"), dtype=tl.float32)
    for at in range(0, known, KEYS):
        place = at + tl.arange(0, KEYS)
        seen = place < known
        # a remainder for each key would cost more than its product
        turned = oldest + place - prompt
        frame = tl.where(place < prompt, start + place, ring + tl.where(turned < cells, turned, turned - cells))
        read = seen[:, None] & (column < DIM)
        key = tl.load(keys + frame[:, None] * DIM, read, other=0.0).to(qkv.dtype.element_ty)
        value = tl.load(values + frame[:, None] * DIM, read, other=0.0).to(qkv.dtype.element_ty)
        more = _by_distance(relative, place[None] - (known + asking)[:, None], (asking < frames)[:, None] & seen[None], RELATIVE)
        total, weight, highest = _meet(total, weight, highest, query, key, value, seen, more, scale, PRECISION)
    # new frames as the next chunk will find them
    if ALL:
        more = _by_distance(relative, asking[None] - asking[:, None], (asking < frames)[:, None] & lasting[None], RELATIVE)
        key, value = own_key.to(qkv.dtype.element_ty), own_value.to(qkv.dtype.element_ty)
        total, weight, highest = _meet(total, weight, highest, query, key, value, lasting, more, scale, PRECISION)
    else:
        for at in range(0, fresh, NEW):
            place = at + tl.arange(0, NEW)
            seen = place < fresh
            key, value = _fresh(own, place, seen, norms, eps, DIM, BLOCK, width, stride, NORMED)
            key = key.to(arena.dtype.element_ty).to(qkv.dtype.element_ty)
            value = value.to(arena.dtype.element_ty).to(qkv.dtype.element_ty)
            more = _by_distance(relative, place[None] - asking[:, None], (asking < frames)[:, None] & seen[None], RELATIVE)
            total, weight, highest = _meet(total, weight, highest, query, key, value, seen, more, scale, PRECISION)
    total = total / tl.where(weight > 0, weight, 1.0)[:, None]
    told = out + (first + asking)[:, None] * width + head * DIM + column
    tl.store(told, total.to(out.dtype.element_ty), asked)


def attend(
    qkv: Tensor,
    arena: Tensor,
    spans: Spans,
    frames: int,
    *,
    norms: HeadNorms | None = None,
    distances: Distances | None = None,
    tf32: bool = False,
    tile: AttentionTile | None = None,
) -> Tensor:
    """Each new frame attends to its row's prompt, kept frames and new frames; writes the new keys and values; returns [T, heads * dim].

    qkv [T, parts * heads * dim], T = B * guided * frames: queries, keys, values, perhaps more; arena [K/V, guided, heads, F, dim] of one
    block, contiguous, any float; `norms` of queries and keys before they meet; `distances` added to scores before they are divided by
    sqrt(dim). Sums are fp32; `tf32`: products of fp32 are as in `product`.
    """
    guided, heads, held_frames, dim = arena.shape[1:]
    tokens, width = qkv.shape
    pairs = tokens // frames * heads
    cut = tile or attention_tile(pairs, frames, qkv.element_size(), tf32=tf32)
    out = torch.empty(tokens, heads * dim, dtype=qkv.dtype, device=qkv.device)
    norm, by = norms or HeadNorms(qkv, 0.0), distances or Distances(qkv[:, :, None], 0)
    _attend[(pairs, triton.cdiv(frames, cut.queries))](
        qkv,
        arena,
        spans.rows,
        out,
        norm.parameters,
        by.values,
        tokens,
        frames,
        held_frames,
        spans.cells,
        spans.kept,
        by.values.shape[2],
        by.zero,
        norm.eps,
        math.log2(math.e) / math.sqrt(dim),
        GUIDED=guided,
        HEADS=heads,
        DIM=dim,
        PARTS=width // (heads * dim),
        BLOCK=max(16, triton.next_power_of_2(dim)),
        QUERIES=cut.queries,
        KEYS=cut.keys,
        NEW=min(cut.keys, max(16, triton.next_power_of_2(frames)), NEW_KEYS),
        NORMED=norms is not None,
        RELATIVE=distances is not None,
        ALL=frames <= cut.queries,
        PRECISION="tf32" if tf32 else "tf32x3",
        num_warps=cut.warps,
        num_stages=cut.stages,
        **chain(),
    )
    return out
