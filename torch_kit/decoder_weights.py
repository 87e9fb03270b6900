"""The weights of a decoder as its forward uses them: checked, and joined where one product does for several."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_kit.fp8 import FP8
from torch_kit.matrix import Matrix


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
    """One block. Matrices are [out, in], all of them scaled or none."""

    attention_norm: Tensor
    qkv: Matrix
    """[(heads + 2 kv_heads) * head_dim, hidden_size]"""
    qk_norm: Tensor | None
    """[heads + kv_heads, head_dim]"""
    out: Matrix
    mlp_norm: Tensor
    gate_up: Matrix
    """[2 intermediate_size, hidden_size]"""
    down: Matrix

    @property
    def matrices(self) -> tuple[Matrix, Matrix, Matrix, Matrix]:
        return self.qkv, self.out, self.gate_up, self.down


class DecoderWeights:
    """Of tensors named as in transformers' Qwen3Model and LlamaModel (`layers.N.self_attn.q_proj.weight`, ..., `norm.weight`), or joined by
    `join`. A matrix in e4m3 has its scales beside it, `layers.N.self_attn.q_proj.scale` (see `narrow`). Other entries are ignored.
    """

    def __init__(self, weights: Mapping[str, Tensor], config: DecoderConfig) -> None:
        """Raises WeightError."""
        self.layers = [_layer(weights, config, index) for index in range(config.layers)]
        self.norm = _tensor(weights, "norm.weight", config.hidden_size)
        self.scaled = self.layers[0].qkv.scales is not None
        """Matrices are in e4m3."""
        for index, layer in enumerate(self.layers):
            if any((matrix.scales is not None) != self.scaled for matrix in layer.matrices):
                raise WeightError(f"layers.{index}", "some matrices are in e4m3, others are not")


def narrow(name: str, weight: Tensor) -> dict[str, Tensor]:
    """A matrix `NAME.weight` in e4m3, and its scales as `NAME.scale`."""
    matrix = Matrix.narrowed(weight)
    assert matrix.scales is not None
    return {name: matrix.values, _scale_name(name): matrix.scales}


def matrix_names(config: DecoderConfig, prefix: str = "") -> frozenset[str]:
    """Of all matrices of the blocks, before they are joined."""
    joined = (part for parts in _joined(config).values() for part in parts)
    parts = (*joined, "self_attn.o_proj", "mlp.down_proj")
    return frozenset(f"{prefix}layers.{index}.{part}.weight" for index in range(config.layers) for part in parts)


def join(weights: MutableMapping[str, Tensor], config: DecoderConfig, prefix: str = "") -> None:
    """Joins the matrices of `prefix` + their names, whose places the joined ones take: so one layer at most is held twice. Raises
    WeightError."""
    for index in range(config.layers):
        for name, parts in _joined(config).items():
            names = [f"{prefix}layers.{index}.{part}.weight" for part in parts]
            place, matrix = f"{prefix}layers.{index}.{name}.weight", _together(weights, names, list(parts.values()), config.hidden_size)
            weights[place] = matrix.values
            if matrix.scales is not None:
                weights[_scale_name(place)] = matrix.scales
            for part in names:
                del weights[part]
                weights.pop(_scale_name(part), None)


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

    def matrix(name: str, *shape: int) -> Matrix:
        return _matrix(weights, f"{prefix}{name}.weight", *shape)

    def joined(name: str) -> Matrix:
        parts = _joined(config)[name]
        if f"{prefix}{name}.weight" in weights:
            return matrix(name, sum(parts.values()), width)
        return _together(weights, [f"{prefix}{part}.weight" for part in parts], list(parts.values()), width)

    return LayerWeights(
        attention_norm=tensor("input_layernorm", width),
        qkv=joined("self_attn.qkv_proj"),
        qk_norm=_qk_norm(weights, prefix, config) if config.qk_norm else None,
        out=matrix("self_attn.o_proj", width, config.heads * config.head_dim),
        mlp_norm=tensor("post_attention_layernorm", width),
        gate_up=joined("mlp.gate_up_proj"),
        down=matrix("mlp.down_proj", width, inner),
    )


def _qk_norm(weights: Mapping[str, Tensor], prefix: str, config: DecoderConfig) -> Tensor:
    query, key = (_tensor(weights, f"{prefix}self_attn.{name}_norm.weight", config.head_dim) for name in "qk")
    return torch.cat((query.expand(config.heads, -1), key.expand(config.kv_heads, -1)))


def _together(weights: Mapping[str, Tensor], names: Sequence[str], rows: Sequence[int], width: int) -> Matrix:
    matrices = [_matrix(weights, name, count, width) for name, count in zip(names, rows, strict=True)]
    for name, matrix in zip(names, matrices, strict=True):
        if (matrix.scales is None) != (matrices[0].scales is None):
            raise WeightError(name, f"not of the type of {names[0]}, to which it is joined")
    return Matrix.joined(matrices)


def _matrix(weights: Mapping[str, Tensor], name: str, *shape: int) -> Matrix:
    values = _tensor(weights, name, *shape)
    return Matrix(values, _tensor(weights, _scale_name(name), shape[0]) if values.dtype == FP8 else None)


def _scale_name(name: str) -> str:
    return f"{name.removesuffix('.weight')}.scale"


def _tensor(weights: Mapping[str, Tensor], name: str, *shape: int) -> Tensor:
    tensor = weights.get(name)
    if tensor is None:
        raise WeightError(name, "missing")
    if tuple(tensor.shape) != shape:
        raise WeightError(name, f"shape {tuple(tensor.shape)}, not {shape}")
    return tensor
