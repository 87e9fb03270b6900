"""A matrix of weights: plain, or in e4m3 with a scale for each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from torch_kit.fp8 import FP8, narrowed

_AT_ONCE = 1 << 22
"""Elements that are rounded at once: what that takes beside the matrix is several times as many fp32 numbers."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """[out, in], contiguous."""

    values: Tensor
    """Of any float type; e4m3 if it has scales."""
    scales: Tensor | None = None
    """fp32 [out], by which the rows of an e4m3 matrix are multiplied: max |w| / 448 each."""

    @classmethod
    def narrowed(cls, weight: Tensor) -> Matrix:
        """`weight` [out, in] rounded to e4m3. A row with NaN or infinity has such a scale."""
        values = torch.empty_like(weight, dtype=FP8)
        scales = weight.new_empty(len(weight), dtype=torch.float32)
        rows = max(_AT_ONCE // weight.shape[1], 1)
        for begin in range(0, len(weight), rows):
            part = slice(begin, begin + rows)
            values[part], scales[part] = narrowed(weight[part])
        return cls(values, scales)

    @classmethod
    def joined(cls, parts: Sequence[Matrix]) -> Matrix:
        """Those of the same width, one below the other; all plain or none."""
        scales = [part.scales for part in parts if part.scales is not None]
        if not scales:
            return cls(torch.cat([part.values for part in parts]))
        # bytes are copied whatever they mean
        values = torch.cat([part.values.view(torch.uint8) for part in parts]).view(FP8)
        return cls(values, torch.cat(scales))

    def __call__(self, source: Tensor, *, rounded: bool = False) -> Tensor:
        """[N, out] in the dtype of `source` [N, in]: source times the matrix transposed; scales are multiplied behind the sum.

        `rounded`: with a scaled matrix the source is rounded to e4m3 before, line by line (`fp8.narrowed`).
        """
        if self.scales is None:
            return functional.linear(source, self.values)
        if rounded:
            codes, marks = narrowed(source)
            return (functional.linear(codes.float(), self.values.float()) * marks[:, None] * self.scales).to(source.dtype)
        return functional.linear(source, self.values.to(source.dtype)).mul_(self.scales)
