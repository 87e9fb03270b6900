"""Rotary positions from fp64 angles, for positions without a practical end."""

from __future__ import annotations

import torch
from torch import Tensor

STRIDE = 16_384
"""Positions are written as high * STRIDE + low; both tables have STRIDE rows."""
MAX_POSITION = STRIDE * STRIDE - 1


class Rope:
    """cos and sin of position * theta^(-2i / head_dim), half-rotation style (the pairs are i and i + head_dim / 2).

    A session that never ends has positions in the millions, where fp32 angles have lost their fraction. Two tables of fp64 angles are
    joined by the addition theorem: 16,384 rows each reach 268 million positions, with the error of two fp32 roundings. A table of pages
    gives out no position beyond.
    """

    def __init__(self, head_dim: int, theta: float, device: torch.device | str = "cpu") -> None:
        if head_dim % 2:
            raise ValueError("head_dim: odd")
        rates = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
        steps = torch.arange(STRIDE, dtype=torch.float64)[:, None]
        self.low = _table(steps * rates, device)
        """fp32 [STRIDE, 2, head_dim / 2]: cos and sin of positions below STRIDE."""
        self.high = _table(steps * STRIDE * rates, device)
        """The same of multiples of STRIDE."""

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and signed sin, fp32 [N, 1, 2, head_dim / 2], of positions [N] from 0 to MAX_POSITION: see `rotate`."""
        low = self.low[positions % STRIDE]
        high = self.high[positions // STRIDE]
        cos = high[:, 0] * low[:, 0] - high[:, 1] * low[:, 1]
        sin = high[:, 1] * low[:, 0] + high[:, 0] * low[:, 1]
        return torch.stack((cos, cos), dim=1)[:, None], torch.stack((-sin, sin), dim=1)[:, None]


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`states` [N, heads, head_dim] turned by their positions: computed in fp32, returned in their own dtype.

    (first, second) becomes (first cos - second sin, second cos + first sin).
    """
    halves = states.view(*states.shape[:-1], 2, -1)
    return (halves * cos + halves.flip(-2) * sin).to(states.dtype).flatten(-2)


def _table(angles: Tensor, device: torch.device | str) -> Tensor:
    """fp32 [rows, 2, head_dim / 2]."""
    return torch.stack((angles.cos(), angles.sin()), dim=1).to(device=device, dtype=torch.float32)
