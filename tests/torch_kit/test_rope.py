"""Rotations from fp64 angles, near and far."""

from __future__ import annotations

import pytest
import torch

from torch_kit.rope import MAX_POSITION, STRIDE, Rope, rotate


@pytest.mark.parametrize("theta", [10_000.0, 1_000_000.0])
def test_angles_stay_exact_at_any_position(theta: float) -> None:
    positions = torch.tensor([0, 1, STRIDE - 1, STRIDE, 40_960, 1_000_003, MAX_POSITION])
    angles = positions.double()[:, None] * theta ** -(torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    cos, sin = Rope(64, theta)(positions.int())
    assert (cos[:, 0] - angles.cos()[:, None]).abs().max() < 2e-7
    assert (sin[:, 0] - torch.stack((-angles.sin(), angles.sin()), 1)).abs().max() < 2e-7


def test_a_product_depends_on_the_distance_only() -> None:
    rope = Rope(16, 10_000.0)
    query, key = torch.randn(2, 1, 1, 16, generator=torch.Generator().manual_seed(0))

    def product(at: int, other: int) -> float:
        return float((rotate(query, *rope(torch.tensor([at]))) * rotate(key, *rope(torch.tensor([other])))).sum())

    assert product(30, 11) == pytest.approx(product(5_000_030, 5_000_011), abs=2e-6)
    assert product(30, 11) != pytest.approx(product(30, 12), abs=1e-3)


def test_a_low_precision_state_is_turned_in_fp32() -> None:
    rope = Rope(16, 10_000.0)
    states = torch.randn(4, 2, 16, generator=torch.Generator().manual_seed(1)).bfloat16()
    angles = rope(torch.arange(4))
    turned = rotate(states, *angles)
    assert turned.dtype == torch.bfloat16 and torch.equal(turned, rotate(states.float(), *angles).bfloat16())


def test_an_odd_width_is_refused() -> None:
    with pytest.raises(ValueError, match="head_dim"):
        Rope(15, 10_000.0)
