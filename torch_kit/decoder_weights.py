"""The weights of a decoder as its forward uses them: checked, and joined where one product does for several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


class WeightError(ValueError):
    """A tensor is missing or has the wrong shape: `name` says which."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name = name


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Sizes of a decoder."""

    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_eps: float
    rope_theta: float
    qk_norm: bool
    """RMSNorm over head_dim on queries and keys, before the rotation (Qwen3)."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One block. Matrices are [out, in]."""

    attention_norm: Tensor
    qkv: Tensor
    """[(heads + 2 kv_heads) * head_dim, hidden_size]"""
    qk_norm: Tensor | None
    """[heads + kv_heads, head_dim]"""
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    """[2 intermediate_size, hidden_size]"""
    down: Tensor


class DecoderWeights:
    """Of tensors named as in transformers' Qwen3Model and LlamaModel (`layers.N.self_attn.q_proj.weight`, ..., `norm.weight`).

    Other entries are ignored.
    """

    def __init__(self, weights: Mapping[str, Tensor], config: DecoderConfig) -> None:
        """Raises WeightError."""
        self.layers = [_layer(weights, config, index) for index in range(config.layers)]
        self.norm = _tensor(weights, "norm.weight", config.hidden_size)


def _layer(weights: Mapping[str, Tensor], config: DecoderConfig, index: int) -> LayerWeights:
    prefix = f"layers.{index}."
    query, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    width, inner = config.hidden_size, config.intermediate_size

    def tensor(name: str, *shape: int) -> Tensor:
        return _tensor(weights, f"{prefix}{name}.weight", *shape)

    return LayerWeights(
        attention_norm=tensor("input_layernorm", width),
        qkv=torch.cat(
            [
                tensor("self_attn.q_proj", query, width),
                tensor("self_attn.k_proj", keys, width),
                tensor("self_attn.v_proj", keys, width),
            ]
        ),
        qk_norm=_qk_norm(weights, prefix, config) if config.qk_norm else None,
        out=tensor("self_attn.o_proj", width, query),
        mlp_norm=tensor("post_attention_layernorm", width),
        gate_up=torch.cat([tensor("mlp.gate_proj", inner, width), tensor("mlp.up_proj", inner, width)]),
        down=tensor("mlp.down_proj", width, inner),
    )


def _qk_norm(weights: Mapping[str, Tensor], prefix: str, config: DecoderConfig) -> Tensor:
    query, key = (_tensor(weights, f"{prefix}self_attn.{name}_norm.weight", config.head_dim) for name in "qk")
    return torch.cat((query.expand(config.heads, -1), key.expand(config.kv_heads, -1)))


def _tensor(weights: Mapping[str, Tensor], name: str, *shape: int) -> Tensor:
    tensor = weights.get(name)
    if tensor is None:
        raise WeightError(name, "missing")
    if tuple(tensor.shape) != shape:
        raise WeightError(name, f"shape {tuple(tensor.shape)}, not {shape}")
    return tensor
