"""The small kernels, each against torch."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tests.torch_kit.support.fused import DEVICE, TILING
from torch_kit.decoder import rms_norm
from torch_kit.kernels.gated_product import gated_product
from torch_kit.kernels.page_writer import write_pages
from torch_kit.kernels.residual_norm import picked_norm, residual_norm
from torch_kit.page_table import PageTable
from torch_kit.pages import PagePool
from torch_kit.ragged import RaggedBatch
from torch_kit.rope import Rope, rotate


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE)


def test_the_residual_sum_is_kept_and_normed() -> None:
    # a width that is no power of two, so that lines touch
    states, residual, weight = randn(5, 48), randn(5, 48), randn(48)
    states[3] = torch.nan
    held, out = residual.clone(), torch.full_like(states, torch.nan)
    residual_norm(states, held, weight, out, 1e-6)
    sound = [0, 1, 2, 4]
    assert torch.equal(held[sound], (residual + states)[sound])
    assert (out - rms_norm(residual + states, weight, 1e-6))[sound].abs().max() < 1e-5
    residual_norm(states, held, weight, out, 1e-6, first=True)
    assert torch.equal(held[sound], states[sound]) and (out - rms_norm(states, weight, 1e-6))[sound].abs().max() < 1e-5


def test_only_picked_tokens_are_normed() -> None:
    states, residual, weight = randn(6, 40), randn(6, 40), randn(40)
    before, out = residual.clone(), torch.full((3, 40), torch.nan, device=DEVICE)
    tokens = torch.tensor([5, 0, 0], dtype=torch.int32, device=DEVICE)
    picked_norm(states, residual, weight, out, tokens, 1e-6)
    assert torch.equal(residual, before)
    assert (out - rms_norm(states + residual, weight, 1e-6)[tokens]).abs().max() < 1e-5


def test_the_gate_opens_what_is_beside_it() -> None:
    joined, out = randn(3, 160) * 4, torch.full((4, 80), torch.nan, device=DEVICE)
    gated_product(joined, out[:3], block=32)
    gate, up = joined.chunk(2, -1)
    torch.testing.assert_close(out[:3], functional.silu(gate) * up, rtol=1e-5, atol=1e-5)
    assert out[3].isnan().all()


@pytest.mark.parametrize("normed", [True, False])
def test_pages_are_written_and_queries_turned_twice(normed: bool) -> None:
    heads, kv_heads, head_dim = 6, 2, 32
    pool = PagePool(layers=2, kv_heads=kv_heads, head_dim=head_dim, pages=9, page=16, device=DEVICE, poison=True)
    rope = Rope(head_dim, 1_000_000.0, DEVICE)
    tables = [PageTable(pool, 4) for _ in range(2)]
    tables[0].append_prefix(5)
    tables[0].append(15)
    tables[0].cut(5, 9)
    # a session that has lasted for months
    tables[1].position = 15_000_000
    batch = RaggedBatch.tiled([tables[0].append(4), tables[1].append(1)], TILING)
    assert batch.size == 8
    joined, norm = randn(8, (heads + 2 * kv_heads) * head_dim), randn(heads + kv_heads, head_dim) if normed else None
    query, prefix_query = (torch.full((8, heads, head_dim), torch.nan, device=DEVICE) for _ in range(2))
    write_pages(joined, norm, rope, batch, query, prefix_query, pool.layer(1), 1e-6)

    states = joined.view(8, -1, head_dim)
    turned, value = states[:, : heads + kv_heads], states[:, heads + kv_heads :]
    if norm is not None:
        turned = functional.rms_norm(turned, (head_dim,), None, 1e-6) * norm
    expected = rotate(turned.contiguous(), *rope(batch.positions))
    assert (query - expected[:, :heads]).abs().max() < 1e-5
    assert (prefix_query - rotate(turned[:, :heads].contiguous(), *rope(batch.prefix_positions))).abs().max() < 1e-5
    pages, offsets = (batch.slots // 16)[:5], (batch.slots % 16)[:5]
    cache = pool.layer(1)
    assert (cache[pages, 0, :, offsets] - expected[:5, heads:]).abs().max() < 1e-5
    assert torch.equal(cache[pages, 1, :, offsets], value[:5])
    cache[pages, :, :, offsets] = torch.nan
    assert pool.storage[:, 1:].isnan().all() and pool.storage[0, 0].eq(0).all()
