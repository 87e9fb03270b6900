"""Matrices in e4m3: how they are rounded, joined and multiplied."""

from __future__ import annotations

import pytest
import torch

from torch_kit import matrix
from torch_kit.fp8 import FP8, narrowed, widened
from torch_kit.matrix import Matrix


def draw(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_every_row_is_rounded_by_its_own_scale_however_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = (draw(11, 24) * torch.logspace(-3, 2, 11)[:, None]).bfloat16()
    codes, scales = narrowed(weight)
    for elements in (1, 72, 1 << 22):
        monkeypatch.setattr(matrix, "_AT_ONCE", elements)
        made = Matrix.narrowed(weight)
        assert made.values.dtype == FP8 and made.scales is not None and made.scales.dtype == torch.float32
        assert torch.equal(made.values.float(), codes.float()) and torch.equal(made.scales, scales)
    assert (widened(codes, scales, torch.float32) - weight.float()).abs().max(1).values.le(weight.float().abs().amax(1) / 16).all()


def test_a_row_with_nan_or_infinity_has_such_a_scale() -> None:
    weight = draw(4, 8)
    weight[1, 3], weight[2, 0] = torch.nan, -torch.inf
    scales = Matrix.narrowed(weight).scales
    assert scales is not None and scales.isfinite().tolist() == [True, False, False, True]


def test_joined_and_rounded_or_rounded_and_joined_is_the_same() -> None:
    parts = [draw(3, 16), draw(5, 16, seed=2) * 9]
    apart, together = Matrix.joined([Matrix.narrowed(part) for part in parts]), Matrix.narrowed(torch.cat(parts))
    assert torch.equal(apart.values.float(), together.values.float())
    assert apart.scales is not None and together.scales is not None and torch.equal(apart.scales, together.scales)
    plain = Matrix.joined([Matrix(part) for part in parts])
    assert plain.scales is None and torch.equal(plain.values, torch.cat(parts))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_is_one_with_the_widened_matrix(dtype: torch.dtype) -> None:
    source, weight = draw(3, 32).to(dtype), draw(5, 32, seed=2)
    made = Matrix.narrowed(weight)
    assert made.scales is not None
    wide = widened(made.values, made.scales, torch.float32)
    close = {"rtol": 2**-7, "atol": 2**-7} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    product = made(source)
    assert product.dtype == dtype
    torch.testing.assert_close(product.float(), source.float() @ wide.T, **close)
    exact = widened(*narrowed(source), torch.float32) @ wide.T
    torch.testing.assert_close(made(source, rounded=True).float(), exact, **close)
    assert (exact - source.float() @ wide.T).abs().max() > 0.01
    plain = Matrix(weight.to(dtype))
    assert torch.equal(plain(source, rounded=True), torch.nn.functional.linear(source, weight.to(dtype)))
