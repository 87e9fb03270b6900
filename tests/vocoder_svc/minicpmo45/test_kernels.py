"""Each kernel of the vocoder against the operations of torch that it stands for; memory that nobody wrote is NaN."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.vocoder_svc.minicpmo45.kernels import DEVICE, near, randn
from vocoder_svc.minicpmo45.attention import Spans
from vocoder_svc.minicpmo45.kernels.attention import Distances, HeadNorms, attend
from vocoder_svc.minicpmo45.kernels.euler import euler
from vocoder_svc.minicpmo45.kernels.norm import norm
from vocoder_svc.minicpmo45.kernels.product import multiplied, product
from vocoder_svc.minicpmo45.kernels.tiles import CUBLAS, AttentionTile, ProductTile, RowTile
from vocoder_svc.minicpmo45.kernels.unfold import Memory, joined_mish, joined_norm, unfolded_weight
from vocoder_svc.minicpmo45.layers import newest

WIDTH, EPS = 24, 1e-6
DTYPE = torch.float32


def _normed(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return functional.layer_norm(x, (WIDTH,), scale, shift, EPS)


@pytest.mark.parametrize("rows", [4, 64])
def test_a_norm_of_a_gated_sum(rows: int) -> None:
    h, branch = randn(30, WIDTH), randn(30, WIDTH, seed=1)
    gate, scale, shift = randn(3, WIDTH, seed=2)
    expected = h + gate * branch
    found = norm(h, scale, shift, EPS, DTYPE, branch=branch, gate=gate, kept=h, tile=RowTile(rows, 1))
    assert near(h, expected) and near(found, _normed(expected, scale, shift))


def test_a_norm_without_gate_or_sum_and_with_a_branch_that_two_rows_share() -> None:
    h, shared, kept = randn(2 * 2 * 5, WIDTH), randn(2 * 5, WIDTH, seed=1), torch.full((20, WIDTH), torch.nan, device=DEVICE)
    scale, shift = randn(2, WIDTH, seed=2)
    assert near(norm(h, scale, shift, EPS, DTYPE), _normed(h, scale, shift))
    expected = (h.view(2, 2, 5, WIDTH) + shared.view(2, 1, 5, WIDTH)).flatten(0, 2)
    assert near(norm(h, scale, shift, EPS, DTYPE, branch=shared, kept=kept, shared_frames=5), _normed(expected, scale, shift))
    assert near(kept, expected)


@pytest.mark.parametrize(("frames", "rows"), [(6, 8), (6, 64), (1, 8)])
def test_frames_unfolded_for_a_causal_convolution_and_what_it_remembers(frames: int, rows: int) -> None:
    batch = 3
    fresh = torch.tensor([frames, 0, max(1, frames - 3)], device=DEVICE)
    h, branch = randn(batch * 2 * frames, WIDTH), randn(batch * 2 * frames, WIDTH, seed=1)
    gate, scale, shift = randn(3, WIDTH, seed=2)
    held, weight = randn(batch, 2, 2 * WIDTH, 2, seed=3), randn(7, WIDTH, 3, seed=4)
    after = torch.full_like(held, torch.nan)
    tile = RowTile(rows, 1)
    expected = _normed(h + gate * branch, scale, shift)
    first = joined_norm(h, branch, gate, scale, shift, EPS, DTYPE, Memory(held, after, fresh, 0), frames, tile)
    assert not after[:, :, :WIDTH].isnan().any() and after[:, :, WIDTH:].isnan().all()
    second = joined_mish(h, scale, shift, EPS, DTYPE, Memory(held, after, fresh, 1), frames, tile)
    for part, columns, y in ((0, first, expected), (1, second, functional.mish(_normed(h, scale, shift)))):
        before = held[:, :, part * WIDTH : (part + 1) * WIDTH].flatten(0, 1)
        inner = y.view(batch * 2, frames, WIDTH).transpose(1, 2)
        convolved = functional.conv1d(torch.cat((before, inner), 2), weight).transpose(1, 2).flatten(0, 1)
        assert near(product(columns, unfolded_weight(weight), torch.zeros(7, device=DEVICE), frames=frames), convolved)
        kept = newest(before, inner, fresh.repeat_interleave(2)).view(batch, 2, WIDTH, 2)
        assert near(after[:, :, part * WIDTH : (part + 1) * WIDTH], kept)


def test_mish_of_large_values_is_finite() -> None:
    x, zero = torch.zeros(2, WIDTH, device=DEVICE), torch.zeros(1, 2, 2 * WIDTH, 2, device=DEVICE)
    shift = torch.linspace(-120.0, 120.0, WIDTH, device=DEVICE)
    memory = Memory(zero, torch.empty_like(zero), torch.tensor([1], device=DEVICE), 0)
    found = joined_mish(x, shift, shift, EPS, DTYPE, memory, 1)[:, 2]
    assert torch.allclose(found, functional.mish(shift).expand(2, -1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("activation", ["none", "gelu", "silu"])
def test_a_product_and_what_follows_it(activation: str) -> None:
    x, weight, bias = randn(37, 40), randn(50, 40, seed=1) / 6, randn(50, seed=2)
    plain = functional.linear(x, weight, bias)
    expected = {"none": plain, "gelu": functional.gelu(plain, approximate="tanh"), "silu": functional.silu(plain)}[activation]
    assert near(product(x, weight, bias, activation=activation), expected)  # type: ignore[arg-type]
    for tile in (ProductTile(16, 16, 16, 4, 2), ProductTile(64, 32, 32, 4, 2), CUBLAS):
        if tile == CUBLAS and activation != "none":
            continue
        found = multiplied(x, weight, bias, activation=activation, tf32=False, dtype=DTYPE, tile=tile)  # type: ignore[arg-type]
        assert near(found, expected)


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_parts_of_a_product_are_summed_where_they_are_read(parts: int) -> None:
    x, weight, bias = randn(30, 80), randn(WIDTH, 80, seed=1) / 9, randn(WIDTH, seed=2)
    gate, scale, shift = randn(3, WIDTH, seed=3)
    tile = ProductTile(16, 16, 16 if parts < 4 else 64, 4, 2, parts)
    branch = multiplied(x, weight, bias, activation="none", tf32=False, dtype=DTYPE, tile=tile)
    plain = functional.linear(x, weight, bias)
    assert branch.shape == (parts, 30, WIDTH) and near(branch.sum(0), plain)
    h = randn(30, WIDTH, seed=4)
    expected = _normed(h + gate * plain, scale, shift)
    zero, fresh = torch.zeros(3, 2, 2 * WIDTH, 2, device=DEVICE), torch.full((3,), 5, device=DEVICE)
    memory = Memory(zero, torch.empty_like(zero), fresh, 0)
    joined = joined_norm(h.clone(), branch, gate, scale, shift, EPS, DTYPE, memory, 5)
    waved = joined_mish(branch, scale, shift, EPS, DTYPE, memory, 5)
    assert near(norm(h, scale, shift, EPS, DTYPE, branch=branch, gate=gate, kept=h), expected)
    assert near(joined[:, 2:].flatten(0, 1), expected) and not joined[:, :2].any()
    assert near(waved[:, 2:].flatten(0, 1), functional.mish(_normed(plain, scale, shift)))


def test_fp16_results_beyond_its_range_are_its_largest_values() -> None:
    x, weight, bias = torch.full((16, 16), 100.0), torch.full((16, 16), 100.0), torch.zeros(16)
    weight[8:] *= -1
    half = [tensor.to(DEVICE, torch.float16) for tensor in (x, weight, bias)]
    found = multiplied(*half, activation="none", tf32=False, dtype=torch.float16, tile=ProductTile(16, 16, 16, 4, 2))
    assert (found[:, :8] == 65504).all() and (found[:, 8:] == -65504).all()


@pytest.mark.behaviour("S2")
@pytest.mark.parametrize("activation", ["none", "gelu", "silu"])
def test_what_is_no_number_stays_none_in_fp16(activation: str) -> None:
    """As the largest value it would be noise, and nobody would hear of it."""
    x, weight, bias = (tensor.to(torch.float16) for tensor in (randn(16, 16), randn(16, 16, seed=1), randn(16, seed=2)))
    x[3, 5] = torch.nan
    tile = ProductTile(16, 16, 16, 4, 2)
    found = multiplied(x, weight, bias, activation=activation, tf32=False, dtype=torch.float16, tile=tile)  # type: ignore[arg-type]
    assert found[3].isnan().all() and found[[0, 1, 2, 4]].isfinite().all()


def test_an_euler_step_leads_from_the_free_speed_over_the_guided_one() -> None:
    x, speed = randn(3, 7, 80), randn(3, 2, 7, 80, seed=1)
    assert near(euler(x, speed, 0.3, 0.7), x + 0.3 * (1.7 * speed[:, 0] - 0.7 * speed[:, 1]))


HEADS, DIM, FRAMES, CELLS, KEPT = 2, 12, 10, 25, 15
ROWS = [[30, 20, 0, 40, 10], [50, 33, 25, 5, 6], [30, 20, 60, 0, 10], [0, 0, 85, 0, 7], [0, 0, 0, 0, 0]]
"""A ring gone round, one not full, a turn's begin, a set-up without prompt, padding."""


def _seen(row: list[int]) -> list[int]:
    start, prompt, ring, made, fresh = row
    kept = min(made, KEPT)
    return [start + n for n in range(prompt)] + [ring + n % CELLS for n in range(made - kept, made + fresh)]


def _arena(guided: int) -> Tensor:
    """NaN but for the keys that the rows may see."""
    arena = torch.full((2, guided, HEADS, 110, DIM), torch.nan)
    for row in ROWS:
        old = _seen(row)[: len(_seen(row)) - row[4]]
        arena[:, :, :, old] = randn(2, guided, HEADS, len(old), DIM, seed=row[2] + 7).cpu()
    return arena.to(DEVICE)


@pytest.mark.behaviour("N46", "N48")
@pytest.mark.parametrize("tile", [AttentionTile(16, 16, 1, 1), AttentionTile(16, 64, 1, 1), None])
@pytest.mark.parametrize("relative", [False, True])
def test_attention_reads_prompts_and_rings_where_they_lie(relative: bool, tile: AttentionTile | None) -> None:
    guided, parts = (1, 4) if relative else (2, 3)
    batch = len(ROWS)
    arena, spans = _arena(guided), Spans(torch.tensor(ROWS, device=DEVICE), CELLS, KEPT, 33, FRAMES)
    before = arena.clone()
    qkv = randn(batch * guided * FRAMES, parts * HEADS * DIM, seed=1)
    scales = randn(4, DIM, seed=2)
    norms = None if relative else HeadNorms(scales, 1e-5)
    distances = Distances(randn(HEADS, len(qkv), 70, seed=3), 59) if relative else None
    found = attend(qkv, arena, spans, FRAMES, norms=norms, distances=distances, tile=tile).view(batch, guided, FRAMES, HEADS, DIM)
    split = qkv.view(batch, guided, FRAMES, parts, HEADS, DIM).permute(3, 0, 1, 4, 2, 5)
    query, key, value = split[0], split[1], split[2]
    if not relative:
        query = functional.layer_norm(query, (DIM,), scales[0], scales[1], 1e-5)
        key = functional.layer_norm(key, (DIM,), scales[2], scales[3], 1e-5)
    for b, row in enumerate(ROWS):
        fresh = row[4]
        if not fresh:
            assert not found[b].isnan().any()
            continue
        seen = _seen(row)
        before[0][:, :, seen[len(seen) - fresh :]] = key[b, :, :, :fresh]
        before[1][:, :, seen[len(seen) - fresh :]] = value[b, :, :, :fresh]
        keys, values = before[:, :, :, seen]
        scores = query[b] @ keys.transpose(2, 3)
        if distances is not None:
            old = len(seen) - fresh
            column = distances.zero - (old + torch.arange(FRAMES)[:, None] - torch.arange(len(seen))).to(DEVICE)
            own = distances.values.view(HEADS, batch, FRAMES, -1)[:, b]
            scores = scores + own.gather(2, column.expand(HEADS, -1, -1))
        expected = (scores / math.sqrt(DIM)).softmax(3) @ values
        assert near(found[b].transpose(1, 2), expected)
    assert torch.equal(arena.isnan(), before.isnan()) and near(arena.nan_to_num(), before.nan_to_num())
