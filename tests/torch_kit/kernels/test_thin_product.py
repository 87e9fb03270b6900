"""Thin products against torch, in every way they may be run, with NaN around what they may read."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.torch_kit.support.fused import DEVICE
from torch_kit.kernels.thin_product import Thin, ThinProducts, thin

EPS = 1e-6
DEEP, WIDE = 48, 40
ONE = Thin(8, 16, stages=1, dots=False)
WAYS = [None, Thin(16, 32, stages=2), Thin(32, 64, warps=2, lines=32)]
PLAIN_WAYS = [None, Thin(16, 16, 2), Thin(32, 16, 3, lines=32), Thin(32, 32, 4)]


@pytest.fixture(scope="module")
def products() -> ThinProducts:
    return ThinProducts(DEVICE)


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, device=DEVICE)


def poisoned(lines: int, width: int) -> Tensor:
    """Lines with NaN before and behind them."""
    return torch.full((lines + 2, width), torch.nan, device=DEVICE)[1:-1].copy_(draw(lines, width))


@pytest.mark.parametrize("lines", [1, 3, 37])
def test_norm_and_gate_are_within(products: ThinProducts, lines: int) -> None:
    source, weight, norm = poisoned(lines, DEEP), draw(2 * WIDE, DEEP) / 7, 1 + draw(DEEP) / 3
    whole = functional.rms_norm(source, (DEEP,), norm, EPS) @ weight.T
    gate, up = whole.chunk(2, -1)
    for how in WAYS if lines > 1 else [*WAYS, ONE]:
        joined, out = (torch.full((lines, width), torch.nan, device=DEVICE) for width in (2 * WIDE, WIDE))
        products(source, weight, joined, norm=norm, eps=EPS, how=how)
        products(source, weight, out, norm=norm, eps=EPS, gated=True, how=how)
        assert (joined - whole).abs().max() < 1e-5
        assert (out - functional.silu(gate) * up).abs().max() < 1e-5


@pytest.mark.parametrize("lines", [1, 2, 33])
def test_the_residual_is_added_however_it_is_divided(products: ThinProducts, lines: int) -> None:
    source, weight, held = poisoned(lines, DEEP), draw(WIDE, DEEP) / 7, draw(lines, WIDE)
    expected = source @ weight.T
    for how in PLAIN_WAYS if lines > 1 else [*PLAIN_WAYS, ONE, Thin(8, 16, 2, stages=1, dots=False)]:
        # twice: counters are back where they were
        for _ in range(2):
            out = torch.full_like(held, torch.nan)
            products(source, weight, out, how=how)
            assert (out - expected).abs().max() < 1e-5
            products(source, weight, out, residual=held, how=how)
            assert (out - expected - held).abs().max() < 1e-5
            place = held.clone()
            products(source, weight, place, residual=place, how=how)
            assert torch.equal(place, out)


def test_a_line_of_nan_stays_alone(products: ThinProducts) -> None:
    source, weight, norm = draw(4, DEEP), draw(WIDE, DEEP) / 7, draw(DEEP)
    source[2] = torch.nan
    for way, factor in ((None, norm), (None, None), (Thin(16, 16, 3), None)):
        out = torch.empty(4, WIDE, device=DEVICE)
        products(source, weight, out, norm=factor, eps=EPS, how=way)
        assert out.isnan().all(1).tolist() == [False, False, True, False]


def test_the_way_follows_from_the_shape() -> None:
    for wide, deep, plain in ((6144, 4096, False), (4096, 4096, True), (12_288, 4096, False), (4096, 12_288, True), (768, 3072, True)):
        assert thin(1, wide, deep, plain=plain).dots is False
        for lines in (2, 16):
            way = thin(lines, wide, deep, plain=plain)
            assert way.dots and (way.splits == 1 or plain) and deep % (way.chunk * way.splits) == 0
    assert thin(16, 768, 3072, plain=True).splits == 8 and thin(128, 768, 3072, plain=True).splits == 4
    assert [thin(lines, 768, 768, plain=True).lines for lines in (2, 24, 48, 128)] == [16, 32, 64, 64]


def test_what_is_not_served_is_refused(products: ThinProducts) -> None:
    weight, norm = draw(WIDE, DEEP), draw(DEEP)
    with pytest.raises(ValueError, match="source: 129 lines, not more than 128"):
        products(draw(129, DEEP), weight, draw(129, WIDE))
    with pytest.raises(ValueError, match="how: 2 splits of 3 blocks, or before a norm or gate"):
        products(draw(2, DEEP), weight, draw(2, WIDE), norm=norm, how=Thin(16, 16, 2))
    with pytest.raises(ValueError, match="how: 2 lines without dots"):
        products(draw(2, DEEP), weight, draw(2, WIDE), how=ONE)
