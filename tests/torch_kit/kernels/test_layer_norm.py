"""The residual sum and its layer norm against torch's, for widths that are no power of two, too."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tests.torch_kit.support.fused import DEVICE
from torch_kit.kernels.layer_norm import residual_layer_norm


@pytest.mark.behaviour("N48")
@pytest.mark.parametrize(("count", "width", "lines"), [(3, 32, 0), (7, 72, 4), (5, 48, 1)])
def test_it_equals_torch(count: int, width: int, lines: int) -> None:
    generator = torch.Generator().manual_seed(count)
    states, residual = (3 + torch.randn(count, width, generator=generator).to(DEVICE) for _ in range(2))
    weight, bias = (torch.randn(width, generator=generator).to(DEVICE) for _ in range(2))
    for first in (True, False):
        held, out = (torch.full_like(states, torch.nan) if first else residual.clone()), torch.full_like(states, torch.nan)
        residual_layer_norm(states, held, weight, bias, out, 1e-6, first=first, lines=lines)
        total = states if first else residual + states
        assert torch.equal(held, total)
        assert (out - functional.layer_norm(total, (width,), weight, bias, 1e-6)).abs().max() < 1e-5
