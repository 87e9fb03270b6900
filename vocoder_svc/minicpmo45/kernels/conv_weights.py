"""Weights of convolutions as the products of `conv.py` read them: [steps, columns, inputs], inputs without a gap, as TF32 wants them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor


class Conv(msgspec.Struct, frozen=True):
    """One to three convolutions that go together, alike but for their taps.

    Row i of a product reads, at step s, `inputs` numbers at row i' + s * dilation - left, and makes `group` outputs; `rise`: they follow
    each other, and i' = i; otherwise they lie `dilation` apart.
    """

    weight: Tensor
    """[sum of steps, group * outputs, inputs]."""
    bias: Tensor
    """fp32 [convolutions, outputs]."""
    steps: tuple[int, ...]
    left: tuple[int, ...]
    dilation: int = 1
    group: int = 1
    rise: bool = False
    offset: int = 0
    """Numbers by which all is read later; only where `inputs` are several places of the tensor."""

    @property
    def outputs(self) -> int:
        return self.bias.shape[1]

    @property
    def inputs(self) -> int:
        return self.weight.shape[2]


def grouped(
    weights: Sequence[Tensor], biases: Sequence[Tensor], dtype: torch.dtype, *, ahead: Sequence[int], dilation: int = 1, group: int = 1
) -> Conv:
    """Of convolutions fp32 [out, in, taps], `ahead` places of right context each."""
    made = []
    for weight in weights:
        out, inputs, taps = weight.shape
        steps = weight.new_zeros(taps + group - 1, group, out, inputs)
        for place in range(group):
            steps[place : place + taps, place] = weight.permute(2, 0, 1)
        made.append(steps.flatten(1, 2))
    left = tuple((weight.shape[2] - 1) * dilation - right for weight, right in zip(weights, ahead, strict=True))
    return Conv(torch.cat(made).to(dtype), torch.stack(list(biases)), tuple(map(len, made)), left, dilation, group)


def transposed(weight: Tensor, bias: Tensor, dtype: torch.dtype, rate: int) -> Conv:
    """Of a transposed convolution fp32 [in, out, taps], (taps - rate) // 2 places cut at both ends: place i * rate + p reads i + d through
    tap p + (taps - rate) // 2 - d * rate."""
    inputs, out, taps = weight.shape
    cut = (taps - rate) // 2
    first, last = -((taps - 1 - cut) // rate), (rate - 1 + cut) // rate
    steps = weight.new_zeros(last - first + 1, rate, out, inputs)
    for step, place in ((step, place) for step in range(len(steps)) for place in range(rate)):
        tap = place + cut - (first + step) * rate
        if 0 <= tap < taps:
            steps[step, place] = weight[:, :, tap].T
    return Conv(steps.flatten(1, 2).to(dtype), bias[None].clone(), (len(steps),), (-first,), group=rate, rise=True)


def repeated(weight: Tensor, bias: Tensor, dtype: torch.dtype, rate: int) -> Conv:
    """Of a causal convolution fp32 [out, in, taps] over places each repeated `rate` times: taps that read the same one are summed."""
    out, inputs, taps = weight.shape
    back = (taps - 1 + rate - 1) // rate
    steps = weight.new_zeros(back + 1, rate, out, inputs)
    for place in range(rate):
        for tap in range(taps):
            steps[back + (place + tap - taps + 1) // rate, place] += weight[:, :, tap]
    return Conv(steps.flatten(1, 2).to(dtype), bias[None].clone(), (back + 1,), (back,), group=rate, rise=True)


def strided(weight: Tensor, bias: Tensor, dtype: torch.dtype, rate: int, left: int) -> Conv:
    """Of a convolution fp32 [out, in, taps], taps a multiple of the stride `rate`, behind `left` zeros: `rate` places are one row."""
    out, inputs, taps = weight.shape
    steps = weight.permute(0, 2, 1).reshape(out, taps // rate, rate * inputs).transpose(0, 1).contiguous()
    return Conv(steps.to(dtype), bias[None].clone(), (taps // rate,), (0,), offset=-left * inputs)
