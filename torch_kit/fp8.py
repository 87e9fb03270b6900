"""Vectors in e4m3 with one scale each: what fp8 keys and values are."""

from __future__ import annotations

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
LARGEST = 448.0
"""Of e4m3."""
LEAST = 1e-12
"""Largest element that a vector is taken to have at least: one of zeros has a scale, too."""


def narrowed(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 [..., n] of vectors [..., n], rounded to the nearest, and their fp32 scales [...], max |x| / 448.

    A vector with NaN or infinity has a NaN.
    """
    exact = vectors.float()
    scales = exact.abs().amax(-1).clamp(min=LEAST) / LARGEST
    return (exact / scales[..., None]).to(FP8), scales


def widened(vectors: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """[..., n] in `dtype` of what `narrowed` gives; multiplied in fp32."""
    return (vectors.float() * scales[..., None]).to(dtype)
