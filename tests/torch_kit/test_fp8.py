"""Vectors in e4m3: what they lose, what they cost, and the pages that hold them."""

from __future__ import annotations

import torch

from torch_kit.fp8 import FP8, narrowed, widened
from torch_kit.pages import SINK, PagePool


def test_an_element_is_off_by_a_sixteenth_at_most_or_by_a_small_part_of_the_largest() -> None:
    spread = torch.logspace(-3, 4, 64)[:, None]
    vectors = torch.randn(64, 128, generator=torch.Generator().manual_seed(1)) * spread
    # one channel far above the others, as keys have
    vectors[::2, 5] *= 60
    codes, scales = narrowed(vectors)
    assert codes.dtype == FP8 and scales.dtype == torch.float32 and scales.shape == (64,)
    largest = vectors.abs().amax(1)
    torch.testing.assert_close(scales * 448, largest)
    error = (widened(codes, scales, torch.float32) - vectors).abs()
    # 3 bits of mantissa; below 2^-6 of a scale the steps are 2^-9 of it
    assert (error <= torch.maximum(vectors.abs() / 16, scales[:, None] * 2**-10) * 1.0001).all()
    assert error.square().mean(1).sqrt().div(vectors.square().mean(1).sqrt()).max() < 0.04
    assert (widened(codes, scales, torch.float32).abs().amax(1) - largest).abs().div(largest).max() < 1e-6


def test_zeros_stay_zero_and_what_is_not_finite_is_seen() -> None:
    vectors = torch.zeros(3, 8)
    vectors[1, 2], vectors[2, 3] = torch.nan, torch.inf
    codes, scales = narrowed(vectors)
    exact = widened(codes, scales, torch.float32)
    assert exact[0].eq(0).all() and scales[0] > 0 and exact[1].isnan().any() and exact[2].isnan().any()


def test_bf16_vectors_are_rounded_once() -> None:
    vectors = torch.randn(5, 16, generator=torch.Generator().manual_seed(2)).bfloat16()
    for mine, exact in zip(narrowed(vectors), narrowed(vectors.float()), strict=True):
        assert torch.equal(mine.float(), exact.float())


def _pool() -> PagePool:
    return PagePool(layers=3, kv_heads=2, head_dim=16, pages=7, page=4, dtype=FP8, poison=True)


def test_a_pool_counts_its_scales_and_poisons_them() -> None:
    pool = _pool()
    assert pool.scales is not None and pool.dtype == FP8
    assert pool.bytes == 7 * pool.page_bytes == pool.storage.numel() + 4 * pool.scales.numel()
    held = [pool.storage.float(), pool.scales]
    assert all(each[:, 1:].isnan().all() and not each[:, SINK].isnan().any() for each in held)
    pages = [pool.take(), pool.take()]
    numbers, offsets = torch.tensor(pages), torch.tensor([1, 3])
    vectors = torch.randn(2, 2, 2, 16)
    pool.write(1, numbers, offsets, vectors)
    scales = pool.scale(1)
    assert scales is not None
    read = widened(pool.layer(1)[numbers, :, :, offsets], scales[numbers, :, :, offsets], torch.float32)
    assert (read - vectors).abs().max() < vectors.abs().max() / 16
    assert pool.scales.isfinite().sum() == pool.scales[:, SINK].numel() + 2 * 2 * 2
    pool.put(pages)
    assert pool.storage.float()[:, 1:].isnan().all() and pool.scales[:, 1:].isnan().all()


def test_other_pools_have_no_scales() -> None:
    pool = PagePool(layers=1, kv_heads=1, head_dim=2, pages=3, dtype=torch.bfloat16)
    assert pool.scales is None and pool.scale(0) is None
