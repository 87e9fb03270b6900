"""The pre-norm transformer block that the audio encoder and the vision encoder have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from minicpmo45.errors import CheckpointError


def tensor(weights: Mapping[str, Tensor], name: str) -> Tensor:
    """The tensor of that name; raises CheckpointError that names it if there is none."""
    if name not in weights:
        raise CheckpointError(name, "missing from the weights")
    return weights[name]


class Dense(NamedTuple):
    """x W^T + b over the last axis."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def load(cls, weights: Mapping[str, Tensor], name: str) -> Dense:
        return cls(tensor(weights, f"{name}.weight"), weights.get(f"{name}.bias"))

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Norm(NamedTuple):
    """Layer norm over the last axis."""

    weight: Tensor
    bias: Tensor
    eps: float

    @classmethod
    def load(cls, weights: Mapping[str, Tensor], name: str, eps: float) -> Norm:
        return cls(tensor(weights, f"{name}.weight"), tensor(weights, f"{name}.bias"), eps)

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class BlockNames(NamedTuple):
    """How a checkpoint calls the parts of a block."""

    attention_norm: str
    mlp_norm: str
    up: str
    down: str


class EncoderBlock:
    """x + attention(norm(x)), then x + down(activation(up(norm(x)))). The caller owns the keys and values, and attends."""

    def __init__(
        self, weights: Mapping[str, Tensor], prefix: str, names: BlockNames, heads: int, eps: float, activation: Callable[[Tensor], Tensor]
    ) -> None:
        self._heads = heads
        self._activation = activation
        self._attention_norm = Norm.load(weights, f"{prefix}.{names.attention_norm}", eps)
        self._mlp_norm = Norm.load(weights, f"{prefix}.{names.mlp_norm}", eps)
        self._up = Dense.load(weights, f"{prefix}.{names.up}")
        self._down = Dense.load(weights, f"{prefix}.{names.down}")
        self._out = Dense.load(weights, f"{prefix}.self_attn.out_proj")
        parts = [Dense.load(weights, f"{prefix}.self_attn.{part}_proj") for part in ("q", "k", "v")]
        biases = [torch.zeros_like(part.weight[:, 0]) if part.bias is None else part.bias for part in parts]
        self._fused = Dense(torch.cat([part.weight for part in parts]), torch.cat(biases))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[rows, length, width] to queries, keys and values, each [rows, heads, length, width / heads]."""
        rows, length, width = x.shape
        fused = self._fused(self._attention_norm(x)).view(rows, length, 3, self._heads, width // self._heads)
        queries, keys, values = fused.permute(2, 0, 3, 1, 4)
        return queries, keys, values

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """The block's output [rows, length, width] from its input and what its heads attended to, [rows, heads, length, width / heads]."""
        x = x + self._out(attended.transpose(1, 2).flatten(2))
        return x + self._down(self._activation(self._up(self._mlp_norm(x))))
