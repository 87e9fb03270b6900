"""Decoders over fp8 pages: the fused one against the plain one, and the plain one against an independent forward with rounded keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.torch_kit.support import QWEN, decoder, embeddings, feed, reference, table
from tests.torch_kit.support.fused import DEVICE, GROUPED, Both, fused, prefix, window
from torch_kit.attention import PlainAttention
from torch_kit.fp8 import FP8, narrowed, widened
from torch_kit.kernels.page_writer import write_pages
from torch_kit.kernels.paged_attention import Launch, PagedAttention
from torch_kit.page_table import PageTable
from torch_kit.pages import PagePool
from torch_kit.ragged import RaggedBatch
from torch_kit.rope import Rope
from torch_kit.tiles import Tiling

HEAD_DIM = 32
WIDE = replace(GROUPED, head_dim=HEAD_DIM)


def test_the_fused_path_equals_the_plain_one_in_all_phases() -> None:
    both = Both(WIDE, 3, kept=FP8, thin_tokens=0)
    both.feed([(0, prefix(17)), (1, prefix(3))], embeddings(20, seed=1))
    both.feed([(0, window(18))], embeddings(18, seed=2))
    # a gap, and a page whose first valid offset is not 0; what was cut off is NaN
    both.change(0, lambda table: table.cut(table.window_start, table.window_start + 17))
    both.feed([(0, window(4)), (1, window(1)), (2, window(2))], embeddings(7, seed=3))
    both.change(0, PageTable.clear)
    both.feed([(1, window(3)), (0, window(1))], embeddings(4, seed=5))


def test_the_plain_path_is_a_forward_whose_keys_and_values_were_rounded() -> None:
    """transformers' model, whose attention gets keys and values rounded as ours are."""
    model = reference(QWEN)
    ours = decoder(model, QWEN, kept=FP8)
    inputs = embeddings(40, seed=1)
    rows, found = table(ours), []
    for part in inputs.split([20, 17, 1, 1, 1]):
        found += feed(ours, [rows], [part])
    off = [(torch.cat(found) - _rounded(model, inputs, narrow=narrow)).square().mean().sqrt() for narrow in (True, False)]
    # a few elements lie so near a border that the last bit of a cosine sends them to the other side
    assert off[0] < 0.02 * off[1] and off[1] > 1e-2


@torch.no_grad()
def _rounded(model: Any, inputs: torch.Tensor, *, narrow: bool) -> torch.Tensor:
    """Hidden states of one sequence with transformers' modules and rotation."""
    states, count = inputs[None], len(inputs)
    cos, sin = model.rotary_emb(states, torch.arange(count)[None])

    def turned(x: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, -1)
        return x * cos[:, None] + torch.cat((-right, left), -1) * sin[:, None]

    for block in model.layers:
        attention, normed = block.self_attn, block.input_layernorm(states)
        shape = (1, count, -1, QWEN.head_dim)
        query = attention.q_norm(attention.q_proj(normed).view(shape)).transpose(1, 2)
        key = attention.k_norm(attention.k_proj(normed).view(shape)).transpose(1, 2)
        both = [turned(key), attention.v_proj(normed).view(shape).transpose(1, 2)]
        key, value = (widened(*narrowed(each), torch.float32) if narrow else each for each in both)
        mixed = functional.scaled_dot_product_attention(turned(query), key, value, is_causal=True, enable_gqa=True)
        states = states + attention.o_proj(mixed.transpose(1, 2).flatten(2))
        states = states + block.mlp(block.post_attention_layernorm(states))
    normed: torch.Tensor = model.norm(states)[0]
    return normed


def test_a_shared_prefix_is_read_with_its_scales() -> None:
    ours = decoder(reference(QWEN), QWEN, kept=FP8)
    inputs = embeddings(18, seed=1)
    alone, maker, guest = (table(ours) for _ in range(3))
    for each in (alone, maker):
        ours.forward(inputs[:13], RaggedBatch.of([each.append_prefix(13)]))
    shared = maker.share_prefix()
    guest.attach(shared)
    mine, theirs = feed(ours, [alone, guest], [inputs[13:], inputs[13:]])
    assert (mine - theirs).abs().max() < 1e-5


def _scene(heads: int, kv_heads: int, counts: list[int]) -> tuple[PagePool, RaggedBatch]:
    pool = PagePool(layers=1, kv_heads=kv_heads, head_dim=HEAD_DIM, pages=30, page=16, dtype=FP8, device=DEVICE, poison=True)
    appended = []
    for index, count in enumerate(counts):
        rows = PageTable(pool, 7)
        if index % 2 == 0:
            rows.append_prefix(19)
            rows.append(50)
            rows.cut(19, 19 + 37)
        appended.append(rows.append(count))
    for row in appended:
        for page, start, stop in zip(row.table.pages, row.table.starts, row.table.stops, strict=True):
            numbers, offsets = torch.full((stop - start,), page), torch.arange(start, stop)
            spread = torch.logspace(-2, 2, stop - start)[:, None, None, None]
            pool.write(0, numbers.to(DEVICE), offsets.to(DEVICE), (torch.randn(stop - start, 2, kv_heads, HEAD_DIM) * spread).to(DEVICE))
    return pool, RaggedBatch.tiled(appended, Tiling(pages=7, rows=5))


@pytest.mark.parametrize(("heads", "kv_heads", "counts"), [(4, 2, [1, 1, 1, 1]), (4, 2, [17, 1, 3]), (3, 3, [5, 1, 1])])
def test_the_kernel_equals_the_oracle_however_it_is_split(heads: int, kv_heads: int, counts: list[int]) -> None:
    pool, batch = _scene(heads, kv_heads, counts)
    query, prefix_query = (torch.randn(batch.size, heads, HEAD_DIM, device=DEVICE) for _ in range(2))
    plain = PlainAttention(heads // kv_heads)
    expected = plain(plain.plan(batch, 16), query, prefix_query, pool.layer(0), pool.scale(0))[: batch.count]
    for how in (Launch(1, 4, 2), Launch(4, 4, 2)):
        out = torch.full_like(query, torch.nan)
        attend = PagedAttention(batch, heads, kv_heads, HEAD_DIM, how)
        attend(batch, query, prefix_query, pool.layer(0), out, scales=pool.scale(0))
        assert (out[: batch.count] - expected).abs().max() < 1e-5 * expected.abs().max()
        assert out[batch.count :].eq(0).all()


def test_heads_that_are_too_small_for_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="head_dim: 16 is no power of two from 32 on"):
        fused(reference(GROUPED), GROUPED, kept=FP8)


def test_what_the_kernel_writes_is_what_it_would_write_rounded() -> None:
    pools, caches = [], []
    for kept in (torch.float32, FP8):
        pool = PagePool(layers=1, kv_heads=2, head_dim=HEAD_DIM, pages=9, page=16, dtype=kept, device=DEVICE, poison=True)
        rows = PageTable(pool, 4)
        rows.append(3)
        batch = RaggedBatch.tiled([rows.append(14)], Tiling(pages=4, rows=6))
        joined = torch.randn(16, 8 * HEAD_DIM, generator=torch.Generator().manual_seed(1)).to(DEVICE)
        query, prefix_query = (torch.empty(16, 4, HEAD_DIM, device=DEVICE) for _ in range(2))
        norm = torch.linspace(0.1, 4, 6 * HEAD_DIM, device=DEVICE).view(6, HEAD_DIM)
        write_pages(joined, norm, Rope(HEAD_DIM, 1e6, DEVICE), batch, query, prefix_query, pool.layer(0), 1e-6, pool.scale(0))
        pages, offsets = (batch.slots // 16)[:14], (batch.slots % 16)[:14]
        caches.append(pool.layer(0)[pages, :, :, offsets])
        pools.append(pool)
    scales = pools[1].scale(0)
    assert scales is not None
    codes, expected = narrowed(caches[0])
    torch.testing.assert_close(scales[pages, :, :, offsets], expected, rtol=1e-6, atol=0)
    # division on a card is exact but for the last bit
    assert (codes.view(torch.uint8) != caches[1].view(torch.uint8)).float().mean() < (0 if DEVICE.type == "cpu" else 1e-3) + 1e-9
    assert scales.isfinite().sum() - scales[0].numel() == 14 * 2 * 2
