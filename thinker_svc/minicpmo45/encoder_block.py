"""The pre-norm transformer block that the audio encoder and the vision encoder have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

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
        return functional.linear(x, self.weight, self.bias)


class Norm(NamedTuple):
    """Layer norm over the last axis."""

    weight: Tensor
    bias: Tensor
    eps: float

    @classmethod
    def load(cls, weights: Mapping[str, Tensor], name: str, eps: float) -> Norm:
        return cls(tensor(weights, f"{name}.weight"), tensor(weights, f"{name}.bias"), eps)

    def __call__(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class BlockNames(NamedTuple):
    """How a checkpoint calls the parts of a block."""

    attention_norm: str
    mlp_norm: str
    up: str
    down: str


class EncoderBlock:
    """x + attention(norm(x)), then x + down(gelu(up(norm(x)))). The caller owns the keys and values, and attends."""

    def __init__(
        self, weights: Mapping[str, Tensor], prefix: str, names: BlockNames, heads: int, eps: float, gelu: Literal["none", "tanh"]
    ) -> None:
        """`gelu`: how it is approximated."""
        self.gelu = gelu
        self.attention_norm = Norm.load(weights, f"{prefix}.{names.attention_norm}", eps)
        self.mlp_norm = Norm.load(weights, f"{prefix}.{names.mlp_norm}", eps)
        self.up = Dense.load(weights, f"{prefix}.{names.up}")
        self.down = Dense.load(weights, f"{prefix}.{names.down}")
        self.out = Dense.load(weights, f"{prefix}.self_attn.out_proj")
        parts = [Dense.load(weights, f"{prefix}.self_attn.{part}_proj") for part in ("q", "k", "v")]
        biases = [torch.zeros_like(part.weight[:, 0]) if part.bias is None else part.bias for part in parts]
        self.joined = Dense(torch.cat([part.weight for part in parts]), torch.cat(biases))
        """To queries, keys and values side by side."""
        self._heads = heads

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[rows, length, width] to queries, keys and values, each [rows, heads, length, width / heads]."""
        return self.split(self.joined(self.attention_norm(x)))

    def split(self, joined: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[rows, length, 3 x width] to queries, keys and values, each [rows, heads, length, width / heads]."""
        queries, keys, values = joined.view(*joined.shape[:2], 3, self._heads, -1).permute(2, 0, 3, 1, 4)
        return queries, keys, values

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """The block's output [rows, length, width] from its input and what its heads attended to, [rows, heads, length, width / heads]."""
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.mlp_norm(x)), approximate=self.gelu))
