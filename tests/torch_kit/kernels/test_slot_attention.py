"""The kernel against torch's attention over each row's own history, in every way it may be launched."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.torch_kit.support.fused import DEVICE
from torch_kit.kernels.slot_attention import Launch, SlotAttention, launch

FRAMES, HEADS, HEAD, POSITIONS = 5, 2, 16, 70
WIDTH = HEADS * HEAD
WAYS = (Launch(1, 16), Launch(2, 16), Launch(4, 32))


def scene(slots: list[int], cached: list[int], seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """joined, cache, slots, cached; what does not count is NaN."""
    generator = torch.Generator().manual_seed(seed)
    cache = torch.full((6, 2, HEADS, POSITIONS, HEAD), torch.nan)
    for slot, count in zip(slots, cached, strict=True):
        cache[slot, :, :, :count] = torch.randn(2, HEADS, count, HEAD, generator=generator)
    joined = torch.randn(len(slots) * FRAMES, 3 * WIDTH, generator=generator) * 2
    return joined.to(DEVICE), cache.to(DEVICE), torch.tensor(slots, device=DEVICE), torch.tensor(cached, device=DEVICE)


def attention(rows: int, how: Launch | None = None) -> SlotAttention:
    return SlotAttention(rows, FRAMES, HEADS, HEAD, DEVICE, how)


def alone(joined: Tensor, cache: Tensor, slot: int, cached: int) -> Tensor:
    """One row in fp64: [frames, width]."""
    query, key, value = joined.double().view(FRAMES, 3, HEADS, HEAD).permute(1, 2, 0, 3)
    keys, values = (torch.cat((old[:, :cached].double(), new), 1) for old, new in zip(cache[slot], (key, value), strict=True))
    return ((query @ keys.transpose(1, 2) / HEAD**0.5).softmax(-1) @ values).transpose(0, 1).flatten(1)


@pytest.mark.behaviour("N48")
@pytest.mark.parametrize("how", WAYS, ids=str)
def test_rows_see_their_own_history_and_each_other(how: Launch) -> None:
    slots, cached = [4, 0, 2, 1], [0, 65, 1, 32]
    joined, cache, rows, counts = scene(slots, cached)
    before = cache.clone()
    out = attention(4, how)(joined, cache, rows, counts)
    for row, (slot, count) in enumerate(zip(slots, cached, strict=True)):
        own = joined[row * FRAMES : (row + 1) * FRAMES]
        expected = alone(own, before, slot, count)
        assert (out[row * FRAMES : (row + 1) * FRAMES] - expected).abs().max() < 1e-5
        kept = own.view(FRAMES, 3, HEADS, HEAD)[:, 1:].permute(1, 2, 0, 3)
        before[slot, :, :, count : count + FRAMES] = kept
    assert torch.equal(cache.nan_to_num(7.0), before.nan_to_num(7.0)), "nothing else is written"


@pytest.mark.parametrize("how", WAYS, ids=str)
def test_batched_equals_alone(how: Launch) -> None:
    slots, cached = [3, 5, 0], [17, 48, 0]
    joined, cache, rows, counts = scene(slots, cached, 1)
    single = cache.clone()
    together = attention(3, how)(joined, cache, rows, counts)
    for row in range(3):
        part = slice(row * FRAMES, (row + 1) * FRAMES)
        made = attention(1, how)(joined[part].contiguous(), single, rows[row : row + 1].clone(), counts[row : row + 1].clone())
        assert torch.equal(made, together[part])


@pytest.mark.behaviour("S2")
@pytest.mark.parametrize("how", WAYS, ids=str)
@pytest.mark.parametrize("kind", [0, 1])
def test_what_is_not_finite_comes_out_in_its_own_row_alone(kind: int, how: Launch) -> None:
    joined, cache, rows, counts = scene([3, 5], [50, 48])
    cache[3, kind, :, 7] = torch.nan
    made = attention(2, how)
    made._partials.fill_(1.0)
    out = made(joined, cache, rows, counts)
    assert out[:FRAMES].isnan().all() and out[FRAMES:].isfinite().all()


def test_padding_rows_share_a_slot() -> None:
    joined, cache, rows, counts = scene([1, 5, 5, 5], [20, 0, 0, 0], 2)
    out = attention(4)(joined, cache, rows, counts)
    assert out.isfinite().all() and cache[5, :, :, :FRAMES].isfinite().all() and cache[5, :, :, FRAMES:].isnan().all()


def test_the_launch_follows_from_the_shape() -> None:
    assert [launch(rows * 16).splits for rows in (1, 2, 4, 8, 16, 128)] == [8, 4, 4, 2, 1, 1]


@pytest.mark.parametrize("head_dim", [8, 24])
def test_heads_that_tensor_cores_do_not_take_are_refused(head_dim: int) -> None:
    with pytest.raises(ValueError, match="head_dim"):
        SlotAttention(1, FRAMES, HEADS, head_dim, DEVICE)
