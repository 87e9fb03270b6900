"""Lines that kernels round to e4m3, and their products with a matrix in e4m3."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.torch_kit.support.fused import DEVICE
from torch_kit.decoder import rms_norm
from torch_kit.fp8 import FP8, narrowed, widened
from torch_kit.kernels.gated_product import gated_product
from torch_kit.kernels.residual_norm import residual_norm
from torch_kit.kernels.rounded_product import narrow_lines, rounded_product
from torch_kit.matrix import Matrix


def randn(*shape: int) -> Tensor:
    """Lines of unequal size, the third all 0."""
    made = torch.randn(shape, device=DEVICE) * torch.logspace(-2, 2, shape[0], device=DEVICE)[:, None]
    made[2] = 0
    return made


def blank(lines: int, width: int) -> tuple[Tensor, Tensor]:
    """Codes and scales, with a line behind them that nobody writes."""
    return torch.full((lines + 1, width), torch.nan, device=DEVICE).to(FP8), torch.full((lines + 1,), torch.nan, device=DEVICE)


def check(codes: Tensor, scales: Tensor, exact: Tensor) -> None:
    assert codes[-1].float().isnan().all() and scales[-1].isnan()
    lines, marks = narrowed(exact)
    torch.testing.assert_close(scales[:-1], marks, rtol=1e-5, atol=0)
    # an element at a border of rounding goes to either side
    off = (widened(codes[:-1], scales[:-1], torch.float32) - widened(lines, marks, torch.float32)).abs()
    assert (off > exact.abs() * 1e-4 + 1e-9).float().mean() < 1e-2 and (off <= exact.abs() / 8 + marks[:, None] / 256).all()


@pytest.mark.parametrize("width", [48, 80])
def test_lines_are_rounded_as_torch_does(width: int) -> None:
    source = randn(5, width)
    codes, scales = blank(5, width)
    narrow_lines(source, codes[:-1], scales)
    check(codes, scales, source)
    assert codes[2].float().eq(0).all()


def test_norm_and_gate_round_what_they_write() -> None:
    states, residual, weight, joined = randn(5, 48), randn(5, 48), randn(48, 1)[:, 0], randn(5, 160)
    for first in (True, False):
        held, (codes, scales) = residual.clone(), blank(5, 48)
        residual_norm(states, held, weight, codes[:-1], 1e-6, first=first, scales=scales)
        total = states if first else states + residual
        assert torch.equal(held, total)
        check(codes, scales, rms_norm(total, weight, 1e-6))
    codes, scales = blank(5, 80)
    gated_product(joined, codes[:-1], scales=scales)
    gate, up = joined.chunk(2, -1)
    check(codes, scales, functional.silu(gate) * up)


def test_a_product_is_one_with_both_sides_widened() -> None:
    source = torch.randn(6, 48, device=DEVICE)
    source[4] = torch.nan
    matrix = Matrix.narrowed(torch.randn(32, 48, device=DEVICE))
    assert matrix.scales is not None
    codes, marks = (torch.empty_like(each) for each in narrowed(source))
    narrow_lines(source, codes, marks)
    exact = widened(codes, marks, torch.float32) @ widened(matrix.values, matrix.scales, torch.float32).T
    for dtype, close in ((torch.float32, 1e-5), (torch.bfloat16, 2**-7)):
        out = torch.empty(6, 32, dtype=dtype, device=DEVICE)
        rounded_product(codes, marks, matrix, out)
        assert out.isnan().all(1).tolist() == [False] * 4 + [True, False]
        torch.testing.assert_close(out.float(), exact, rtol=close, atol=close, equal_nan=True)
