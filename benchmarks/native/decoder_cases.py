"""The decoder's kernels, one by one, beside the same in torch and the least that must be read and computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.native.decoder_scenes import Placed, Scene, attention_floor
from benchmarks.native.floors import Floor
from torch_kit.attention import PlainAttention
from torch_kit.decoder_weights import DecoderConfig
from torch_kit.kernels.gated_product import gated_product
from torch_kit.kernels.page_writer import write_pages
from torch_kit.kernels.paged_attention import Launch, PagedAttention, launch
from torch_kit.kernels.residual_norm import residual_norm
from torch_kit.pages import PagePool
from torch_kit.rope import Rope, rotate


class Case(msgspec.Struct, frozen=True):
    """One kernel at one shape. Calls take the number of a copy of what it reads, so that it is not found in L2 where it would not be."""

    kernel: str
    fused: Callable[[int, Any], Tensor]
    """By a way to launch it (None: the one that is served)."""
    plain: Callable[[int, torch.dtype], Tensor]
    """Torch's operations on the same inputs in another dtype, in the shape of `fused`."""
    floor: Floor
    copies: int = 1
    ways: Sequence[Any] = ()


def cases(config: DecoderConfig, scene: Scene, placed: Placed, pool: PagePool) -> Iterator[Case]:
    """`pool`: its layers are the copies of a cache."""
    yield _norm(config, placed, pool)
    yield _gate(config, placed, pool)
    yield _pages(config, placed, pool)
    yield _attention(config, scene, placed, pool)


def _draw(pool: PagePool, *shape: int) -> Tensor:
    return torch.randn(shape, device=pool.device).to(pool.dtype)


def _norm(config: DecoderConfig, placed: Placed, pool: PagePool) -> Case:
    size, width, element = placed.batch.size, config.hidden_size, pool.dtype.itemsize
    states, residual, weight = _draw(pool, size, width), _draw(pool, size, width), _draw(pool, width)
    held, out = residual.clone(), torch.empty_like(states)

    def fused(_: int, __: Any) -> Tensor:
        # nothing is added, so that the sum does not grow with every run; the work is the same
        residual_norm(states, held, weight, out, config.rms_eps, first=True)
        return out

    def plain(_: int, kind: torch.dtype) -> Tensor:
        return functional.rms_norm(states.to(kind), weight.shape, weight.to(kind), config.rms_eps)

    return Case("residual, norm", fused, plain, Floor(3 * size * width * element, 0))


def _gate(config: DecoderConfig, placed: Placed, pool: PagePool) -> Case:
    size, width = placed.batch.size, config.intermediate_size
    joined, out = _draw(pool, size, 2 * width), torch.empty((size, width), dtype=pool.dtype, device=pool.device)

    def fused(_: int, block: Any) -> Tensor:
        gated_product(joined, out, **({"block": block} if block else {}))
        return out

    def plain(_: int, kind: torch.dtype) -> Tensor:
        gate, up = joined.to(kind).chunk(2, -1)
        return functional.silu(gate) * up

    return Case("silu, product", fused, plain, Floor(3 * size * width * pool.dtype.itemsize, 0), ways=(512, 2048, 4096))


def _pages(config: DecoderConfig, placed: Placed, pool: PagePool) -> Case:
    batch, heads, kv_heads, head_dim = placed.batch, config.heads, config.kv_heads, config.head_dim
    rope = Rope(head_dim, config.rope_theta, pool.device)
    norm = _draw(pool, heads + kv_heads, head_dim) if config.qk_norm else None
    joined = _draw(pool, batch.size, (heads + 2 * kv_heads) * head_dim)
    query, prefix_query = (torch.empty((batch.size, heads, head_dim), dtype=pool.dtype, device=pool.device) for _ in range(2))
    cache = pool.layer(0).clone()
    pages, offsets = batch.slots // pool.page, batch.slots % pool.page

    def fused(_: int, block: Any) -> Tensor:
        write_pages(joined, norm, rope, batch, query, prefix_query, cache, config.rms_eps, block=block or 0)
        return query

    def plain(_: int, kind: torch.dtype) -> Tensor:
        turned, value = joined.to(kind).view(batch.size, -1, head_dim).split_with_sizes([heads + kv_heads, kv_heads], 1)
        if norm is not None:
            turned = functional.rms_norm(turned, (head_dim,), None, config.rms_eps) * norm.to(kind)
        asked, key = rotate(turned, *rope(batch.positions)).split_with_sizes([heads, kv_heads], 1)
        rotate(turned[:, :heads], *rope(batch.prefix_positions))
        cache[pages, :, :, offsets] = torch.stack((key, value), 1).to(cache.dtype)
        return asked

    moved = batch.size * (heads + 2 * kv_heads) * head_dim * 2 + batch.size * heads * head_dim
    return Case("norm, turn, write", fused, plain, Floor(moved * pool.dtype.itemsize, 0), ways=(2, 4, 8, 16, 32))


def _attention(config: DecoderConfig, scene: Scene, placed: Placed, pool: PagePool) -> Case:
    batch, heads, kv_heads, head_dim = placed.batch, config.heads, config.kv_heads, config.head_dim
    query, prefix_query = (_draw(pool, batch.size, heads, head_dim) for _ in range(2))
    out, oracle = torch.empty_like(query), PlainAttention(heads // kv_heads)
    plan = oracle.plan(batch, pool.page)
    held: dict[Launch, PagedAttention] = {}

    def fused(copy: int, how: Any) -> Tensor:
        how = how or launch(batch, heads, kv_heads)
        if how not in held:
            held[how] = PagedAttention(batch, heads, kv_heads, head_dim, how)
        held[how](batch, query, prefix_query, pool.layer(copy), out)
        return out

    def plain(copy: int, kind: torch.dtype) -> Tensor:
        return oracle(plan, query.to(kind), prefix_query.to(kind), pool.layer(copy).to(kind))

    return Case("attention", fused, plain, attention_floor(config, scene, pool.dtype.itemsize), pool.layers, _launches(batch.shape))


def _launches(shape: tuple[int, int]) -> list[Launch]:
    """Those worth a try: a few tiles want many parts, many want none."""
    tokens, tiles = shape
    splits = (4, 8, 16, 32) if tiles <= 16 else (2, 4, 8, 16) if tiles <= 64 else (1, 2, 4, 8) if tiles == tokens else (1, 2)
    return [Launch(parts, 4, stages) for parts in splits for stages in (3, 4)]
