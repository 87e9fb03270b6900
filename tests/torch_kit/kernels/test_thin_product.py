"""Thin products against torch, in every way they may be run, with NaN around what they may read."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.torch_kit.support.fused import DEVICE
from torch_kit.fp8 import widened
from torch_kit.kernels.thin_product import Thin, ThinProducts, thin
from torch_kit.matrix import Matrix

EPS = 1e-6
SCALED = pytest.mark.parametrize("scaled", [False, True], ids=["plain", "e4m3"])
DEEP, WIDE = 48, 40
ONE = Thin(8, 16, stages=1, dots=False)
WAYS = [None, Thin(16, 32, stages=2), Thin(32, 64, warps=2, lines=32)]
PLAIN_WAYS = [None, Thin(16, 16, 2), Thin(32, 16, 3, lines=32), Thin(32, 32, 4)]


@pytest.fixture(scope="module")
def products() -> ThinProducts:
    return ThinProducts(DEVICE)


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, device=DEVICE)


def matrix(rows: int, *, scaled: bool) -> tuple[Matrix, Tensor]:
    """And what it is in fp32."""
    weight = draw(rows, DEEP) / 7
    if not scaled:
        return Matrix(weight), weight
    made = Matrix.narrowed(weight * torch.logspace(-1, 1, rows, device=DEVICE)[:, None])
    assert made.scales is not None
    return made, widened(made.values, made.scales, torch.float32)


def poisoned(lines: int, width: int) -> Tensor:
    """Lines with NaN before and behind them."""
    return torch.full((lines + 2, width), torch.nan, device=DEVICE)[1:-1].copy_(draw(lines, width))


@SCALED
@pytest.mark.parametrize("lines", [1, 3, 37])
def test_norm_and_gate_are_within(products: ThinProducts, lines: int, scaled: bool) -> None:
    (given, weight), source, norm = matrix(2 * WIDE, scaled=scaled), poisoned(lines, DEEP), 1 + draw(DEEP) / 3
    whole = functional.rms_norm(source, (DEEP,), norm, EPS) @ weight.T
    gate, up = whole.chunk(2, -1)
    for how in WAYS if lines > 1 else [*WAYS, ONE]:
        joined, out = (torch.full((lines, width), torch.nan, device=DEVICE) for width in (2 * WIDE, WIDE))
        products(source, given, joined, norm=norm, eps=EPS, how=how)
        products(source, given, out, norm=norm, eps=EPS, gated=True, how=how)
        torch.testing.assert_close(joined, whole, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(out, functional.silu(gate) * up, rtol=1e-5, atol=1e-5)


@SCALED
@pytest.mark.parametrize("lines", [1, 2, 33])
def test_the_residual_is_added_however_it_is_divided(products: ThinProducts, lines: int, scaled: bool) -> None:
    (given, weight), source, held = matrix(WIDE, scaled=scaled), poisoned(lines, DEEP), draw(lines, WIDE)
    expected = source @ weight.T
    for how in PLAIN_WAYS if lines > 1 else [*PLAIN_WAYS, ONE, Thin(8, 16, 2, stages=1, dots=False)]:
        # twice: counters are back where they were
        for _ in range(2):
            out = torch.full_like(held, torch.nan)
            products(source, given, out, how=how)
            torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
            products(source, given, out, residual=held, how=how)
            torch.testing.assert_close(out, expected + held, rtol=1e-5, atol=1e-5)
            place = held.clone()
            products(source, given, place, residual=place, how=how)
            assert torch.equal(place, out)


@SCALED
def test_a_line_of_nan_stays_alone(products: ThinProducts, scaled: bool) -> None:
    (given, _), source, norm = matrix(WIDE, scaled=scaled), draw(4, DEEP), draw(DEEP)
    source[2] = torch.nan
    for way, factor in ((None, norm), (None, None), (Thin(16, 16, 3), None), (Thin(32, 16, lines=32), None)):
        out = torch.empty(4, WIDE, device=DEVICE)
        products(source, given, out, norm=factor, eps=EPS, how=way)
        assert out.isnan().all(1).tolist() == [False, False, True, False]


def test_the_way_follows_from_the_shape() -> None:
    for wide, deep, plain in ((6144, 4096, False), (4096, 4096, True), (12_288, 4096, False), (4096, 12_288, True), (768, 3072, True)):
        assert thin(1, wide, deep, plain=plain).dots is False
        for lines in (2, 16):
            way = thin(lines, wide, deep, plain=plain)
            assert way.dots and (way.splits == 1 or plain) and deep % (way.chunk * way.splits) == 0
    assert thin(16, 768, 3072, plain=True).splits == 8 and thin(128, 768, 3072, plain=True).splits == 4
    assert [thin(lines, 768, 768, plain=True).lines for lines in (2, 24, 48, 128)] == [16, 32, 64, 64]
    for wide, deep, plain in ((6144, 4096, True), (4096, 4096, True), (12_288, 4096, False), (4096, 12_288, True), (4096, 4096, False)):
        for lines in (1, 16, 64, 128):
            way = thin(lines, wide, deep, plain=plain, scaled=True)
            assert way.dots == (lines > 1) and way.lines == max(lines, 16) and (way.splits == 1 or plain)
            assert deep % (way.chunk * way.splits) == 0 and wide % way.columns == 0


def test_what_is_not_served_is_refused(products: ThinProducts) -> None:
    weight, norm = Matrix(draw(WIDE, DEEP)), draw(DEEP)
    with pytest.raises(ValueError, match="source: 129 lines, not more than 128"):
        products(draw(129, DEEP), weight, draw(129, WIDE))
    with pytest.raises(ValueError, match="how: 2 splits of 3 blocks, or before a norm or gate"):
        products(draw(2, DEEP), weight, draw(2, WIDE), norm=norm, how=Thin(16, 16, 2))
    with pytest.raises(ValueError, match="how: 2 lines without dots"):
        products(draw(2, DEEP), weight, draw(2, WIDE), how=ONE)
