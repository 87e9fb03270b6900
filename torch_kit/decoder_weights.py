"""The weights of a decoder as its forward uses them: checked, and joined where one product does for several."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
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
    """Of tensors named as in transformers' Qwen3Model and LlamaModel (`layers.N.self_attn.q_proj.weight`, ..., `norm.weight`), or joined by
    `join`. Other entries are ignored.
    """

    def __init__(self, weights: Mapping[str, Tensor], config: DecoderConfig) -> None:
        """Raises WeightError."""
        self.layers = [_layer(weights, config, index) for index in range(config.layers)]
        self.norm = _tensor(weights, "norm.weight", config.hidden_size)


def join(weights: MutableMapping[str, Tensor], config: DecoderConfig, prefix: str = "") -> None:
    """Joins the matrices of `prefix` + their names, whose places the joined ones take: so one layer at most is held twice. Raises
    WeightError."""
    for index in range(config.layers):
        for name, parts in _joined(config).items():
            names = [f"{prefix}layers.{index}.{part}.weight" for part in parts]
            tensors = [_tensor(weights, name, rows, config.hidden_size) for name, rows in zip(names, parts.values(), strict=True)]
            weights[f"{prefix}layers.{index}.{name}.weight"] = torch.cat(tensors)
            for part in names:
                del weights[part]


def _joined(config: DecoderConfig) -> dict[str, dict[str, int]]:
    """Parts and their rows, by the name of what they are joined to."""
    query, keys, inner = config.heads * config.head_dim, config.kv_heads * config.head_dim, config.intermediate_size
    return {
        "self_attn.qkv_proj": {"self_attn.q_proj": query, "self_attn.k_proj": keys, "self_attn.v_proj": keys},
        "mlp.gate_up_proj": {"mlp.gate_proj": inner, "mlp.up_proj": inner},
    }


def _layer(weights: Mapping[str, Tensor], config: DecoderConfig, index: int) -> LayerWeights:
    prefix, width, inner = f"layers.{index}.", config.hidden_size, config.intermediate_size

    def tensor(name: str, *shape: int) -> Tensor:
        return _tensor(weights, f"{prefix}{name}.weight", *shape)

    def joined(name: str) -> Tensor:
        parts = _joined(config)[name]
        if f"{prefix}{name}.weight" in weights:
            return tensor(name, sum(parts.values()), width)
        return torch.cat([tensor(part, rows, width) for part, rows in parts.items()])

    return LayerWeights(
        attention_norm=tensor("input_layernorm", width),
        qkv=joined("self_attn.qkv_proj"),
        qk_norm=_qk_norm(weights, prefix, config) if config.qk_norm else None,
        out=tensor("self_attn.o_proj", width, config.heads * config.head_dim),
        mlp_norm=tensor("post_attention_layernorm", width),
        gate_up=joined("mlp.gate_up_proj"),
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
