"""Vectors in e4m3 with one scale each, as kernels write them; see `torch_kit/fp8.py`."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from torch_kit import fp8

LARGEST = tl.constexpr(fp8.LARGEST)
_LEAST = tl.constexpr(fp8.LEAST)


@triton.jit
def store_narrowed(place, mark, first, second, HALF: tl.constexpr, mask):
    """Vectors of two halves [n, HALF] in fp32 go to `place` and `place + HALF`, their scales to `mark` [n, 1]."""
    largest = tl.maximum(tl.max(tl.abs(first), 1), tl.max(tl.abs(second), 1))[:, None]
    scale = tl.maximum(largest, _LEAST) / LARGEST
    tl.store(place, (first / scale).to(place.dtype.element_ty), mask=mask)
    tl.store(place + HALF, (second / scale).to(place.dtype.element_ty), mask=mask)
    tl.store(mark, scale, mask=mask)


@triton.jit
def narrowed_line(value):
    """One vector in fp32, 0 where nothing is: what is to be rounded to e4m3, and its scale."""
    scale = tl.maximum(tl.max(tl.abs(value), 0), _LEAST) / LARGEST
    return value / scale, scale
