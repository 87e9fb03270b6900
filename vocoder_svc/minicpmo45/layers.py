"""The few operations that the networks share, over a dict of tensors with checkpoint names."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

Weights = Mapping[str, Tensor]


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    """x [..., in] to [..., out]; the bias is optional."""
    return functional.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def layer_norm(weights: Weights, name: str, x: Tensor, eps: float) -> Tensor:
    """Over the last dimension, with scale and shift."""
    scale = weights[f"{name}.weight"]
    return functional.layer_norm(x, scale.shape, scale, weights[f"{name}.bias"], eps)


def conv(weights: Weights, name: str, x: Tensor, dilation: int = 1, stride: int = 1) -> Tensor:
    """x [B, in, T] to [B, out, T'] without padding."""
    return functional.conv1d(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"), stride=stride, dilation=dilation)


def within(lengths: Tensor, size: int) -> Tensor:
    """bool [B, size]: true before each row's length."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def newest(held: Tensor, fresh: Tensor, lengths: Tensor) -> Tensor:
    """The last frames of `held` [B, C, K] followed by each row's first `lengths` frames of `fresh` [B, C, T]: [B, C, K]."""
    keep = held.shape[2]
    index = lengths[:, None] + torch.arange(keep, device=held.device)
    return torch.cat((held, fresh), 2).gather(2, index[:, None].expand(-1, held.shape[1], -1))


def split_last(x: Tensor, parts: int) -> Tensor:
    """[..., parts * n] to [..., parts, n]."""
    return x.reshape(*x.shape[:-1], parts, -1)


def section(weights: Weights, prefix: str) -> dict[str, Tensor]:
    """The tensors below `prefix`, with the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
