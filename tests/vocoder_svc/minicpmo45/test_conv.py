"""The convolution of HiFT against torch's: blocks that go together, sums, operands, tiles, lengths."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.vocoder_svc.minicpmo45.kernels import DEVICE, near, randn
from vocoder_svc.minicpmo45.kernels.conv import After, Counts, convolve
from vocoder_svc.minicpmo45.kernels.conv_mean import mean
from vocoder_svc.minicpmo45.kernels.conv_tiles import ConvTile
from vocoder_svc.minicpmo45.kernels.conv_weights import grouped, repeated, strided, transposed
from vocoder_svc.minicpmo45.layers import within

BATCH, SIZE, CHANNELS = 2, 37, 24
LENGTHS = (37, 20)
EXACT = "tf32x3"


def _rows(*leading: int, size: int = SIZE, channels: int = CHANNELS, seed: int = 0) -> Tensor:
    """[..., B, T, C], NaN beyond the lengths."""
    x = randn(*leading, BATCH, size, channels, seed=seed)
    x[..., ~_seen(size), :] = torch.nan
    return x


def _seen(size: int = SIZE) -> Tensor:
    return within(torch.tensor(LENGTHS, device=DEVICE).clamp(max=size), size)


def _counts() -> Counts:
    return Counts(torch.tensor(LENGTHS, device=DEVICE))


def _snaked(x: Tensor, alpha: Tensor) -> Tensor:
    return x + torch.sin(alpha * x).square() / (alpha + 1e-9)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("dilation", "group", "tile"), [(1, 1, None), (3, 2, ConvTile(16, 16, 16, 1, 1)), (5, 4, ConvTile(16, 64, 32, 1, 1))]
)
def test_blocks_with_sums_and_the_operands_of_what_follows(causal: bool, dilation: int, group: int, tile: ConvTile | None) -> None:
    taps = (3, 7, 11)
    weights = [randn(CHANNELS, CHANNELS, each, seed=each) / 8 for each in taps]
    bias, alpha = randn(3, CHANNELS, seed=1), randn(3, 2, CHANNELS, seed=2).abs() + 0.5
    x, residual, extra = _rows(3), _rows(1, seed=3), _rows(seed=4)
    ahead = [0 if causal else (each - 1) * dilation // 2 for each in taps]
    conv = grouped(weights, list(bias), torch.float32, ahead=ahead, dilation=dilation, group=group)
    into = torch.full_like(x, torch.nan)
    after = After(alpha=alpha, residual=residual, extra=extra, into=into)
    total, operands = convolve(x, conv, _counts(), _counts(), SIZE, after, precision=EXACT, tile=tile)
    assert total is into
    seen = _seen()
    for block, each in enumerate(taps):
        reach = (each - 1) * dilation
        inner = functional.pad(torch.where(seen[:, :, None], x[block], 0.0).transpose(1, 2), (reach - ahead[block], ahead[block]))
        expected = functional.conv1d(inner, weights[block], bias[block], dilation=dilation).transpose(1, 2) + residual[0] + extra
        assert near(total[block][seen], expected[seen])
        for operand in range(2):
            assert near(operands[2 * block + operand][seen], _snaked(expected, alpha[block, operand])[seen])
        assert total[block][~seen].isnan().all()


@pytest.mark.parametrize(("rate", "taps"), [(8, 16), (5, 11), (3, 7)])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shift", [0, 1])
def test_rates_that_rise(rate: int, taps: int, causal: bool, shift: int) -> None:
    shape = (12, CHANNELS, taps) if causal else (CHANNELS, 12, taps)
    weight, bias = randn(*shape) / 8, randn(12, seed=1)
    conv = (repeated if causal else transposed)(weight, bias, torch.float32, rate)
    x, size = _rows(1), rate * SIZE + shift
    write = Counts(_counts().counts, rate, shift)
    total, operands = convolve(x, conv, _counts(), write, size, After(), shift=shift, precision=EXACT)
    inner = torch.where(_seen()[:, :, None], x[0], 0.0).transpose(1, 2)
    if causal:
        expected = functional.conv1d(functional.pad(inner.repeat_interleave(rate, 2), (taps - 1, 0)), weight, bias)
    else:
        expected = functional.conv_transpose1d(inner, weight, bias, stride=rate, padding=(taps - rate) // 2)
    if shift:
        expected = torch.cat((expected[:, :, 1:2], expected), 2)
    seen = within(write.counts * rate + shift, size)
    assert near(total[0][seen], expected.transpose(1, 2)[seen]) and operands.numel() == 0


@pytest.mark.parametrize(("rate", "left"), [(15, 7), (3, 2), (1, 0)])
def test_rates_that_fall(rate: int, left: int) -> None:
    taps = 2 * rate if rate > 1 else 1
    weight, bias, alpha = randn(12, 18, taps) / 8, randn(12, seed=1), randn(1, 1, 12, seed=2).abs() + 0.5
    size = rate * SIZE + (rate > 1)
    x = randn(1, BATCH, size, 18, seed=3)
    read = Counts(_counts().counts, rate, int(rate > 1))
    seen = within(read.counts * rate + int(rate > 1), size)
    x[0, ~seen] = torch.nan
    total, operands = convolve(
        x, strided(weight, bias, torch.float32, rate, left), read, _counts(), SIZE, After(alpha=alpha), precision=EXACT
    )
    inner = functional.pad(torch.where(seen[:, :, None], x[0], 0.0).transpose(1, 2), (left, rate))
    expected = functional.conv1d(inner, weight, bias, stride=rate).transpose(1, 2)[:, :SIZE]
    assert near(total[0][_seen()], expected[_seen()]) and near(operands[0][_seen()], _snaked(expected, alpha[0])[_seen()])


def test_an_operand_of_16_bits_that_is_too_large_is_the_largest_and_nan_stays() -> None:
    x = torch.zeros(1, 1, 4, 16, dtype=torch.float16, device=DEVICE)
    x[0, 0, :, 0] = torch.tensor([1.0, -1.0, 0.5, torch.nan])
    weight = torch.zeros(16, 16, 1, device=DEVICE)
    weight[0, 0] = 60_000.0
    conv, counts = (
        grouped([weight], [torch.full((16,), 10_000.0, device=DEVICE)], torch.float16, ahead=[0]),
        Counts(torch.tensor([4], device=DEVICE)),
    )
    total, operands = convolve(x, conv, counts, counts, 4, After(slope=2.0))
    assert total[0, 0, :3, 0].tolist() == pytest.approx([69_984, -49_984, 39_992], abs=50)
    assert operands[0, 0, :3, 0].tolist() == pytest.approx([65_504, -65_504, 39_992], abs=50) and operands[0, 0, 3, 0].isnan()


def test_the_mean_of_blocks_behind_a_leaky_relu() -> None:
    x = _rows(3)
    found = mean(x, _counts(), 0.1, torch.float32)
    assert near(found[_seen()], functional.leaky_relu(x.mean(0), 0.1)[_seen()])
