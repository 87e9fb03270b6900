"""A decoder-only transformer over pages: Qwen3 (with query and key norms) and Llama (without)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from torch_kit.attention import Attention, PlainAttention
from torch_kit.pages import PagePool
from torch_kit.ragged import RaggedBatch
from torch_kit.rope import Rope, rotate


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
class _Layer:
    attention_norm: Tensor
    qkv: Tensor
    qk_norm: Tensor | None
    """[heads + kv_heads, head_dim]"""
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Decoder:
    """Pre-norm blocks: attention with rotary positions and grouped keys, SwiGLU; a final norm.

    Weights have the names of transformers' Qwen3Model and LlamaModel (`layers.N.self_attn.q_proj.weight`, ..., `norm.weight`); other
    entries are ignored. They are used in their own dtype and on their own device, which the pool shares. Norms and rotations are fp32.
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        config: DecoderConfig,
        pool: PagePool,
        attention: Attention | None = None,
    ) -> None:
        """Raises WeightError."""
        self.config = config
        self.pool = pool
        self._attention = attention or PlainAttention(config.heads // config.kv_heads)
        self._rope = Rope(config.head_dim, config.rope_theta, pool.device)
        self._layers = [_layer(weights, config, index) for index in range(config.layers)]
        self._norm = _tensor(weights, "norm.weight", config.hidden_size)

    @torch.no_grad()
    def forward(self, embeddings: Tensor, batch: RaggedBatch) -> Tensor:
        """Hidden states after the final norm [N, hidden_size]; keys and values of the batch's tokens are in the pages then.

        `embeddings` [N, hidden_size], or [batch.count, hidden_size] without rows for the padding.
        """
        if embeddings.shape[0] == batch.count < batch.size:
            embeddings = functional.pad(embeddings, (0, 0, 0, batch.size - batch.count))
        if tuple(embeddings.shape) != (batch.size, self.config.hidden_size):
            raise ValueError(f"embeddings: {tuple(embeddings.shape)}, not {(batch.size, self.config.hidden_size)}")
        rotation = self._rope(batch.positions)
        prefix_rotation = self._rope(batch.prefix_positions) if batch.gapped else None
        pages, offsets = batch.slots // self.pool.page, batch.slots % self.pool.page
        plan = self._attention.plan(batch, self.pool.page)
        states = embeddings
        for index, layer in enumerate(self._layers):
            queries_keys, value = self._project(layer, states)
            query, key = rotate(queries_keys, *rotation).split_with_sizes([self.config.heads, self.config.kv_heads], dim=1)
            cache = self.pool.layer(index)
            cache[pages, :, :, offsets] = torch.stack((key, value), dim=1).to(cache.dtype)
            prefix_query = None
            if prefix_rotation is not None:
                prefix_query = rotate(queries_keys[:, : self.config.heads], *prefix_rotation)
            mixed = self._attention(plan, query, prefix_query, cache)
            states = states + functional.linear(mixed.flatten(1), layer.out)
            states = states + self._mlp(layer, states)
        return rms_norm(states, self._norm, self.config.rms_eps)

    def _project(self, layer: _Layer, states: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys [N, heads + kv_heads, head_dim], not turned yet, and values [N, kv_heads, head_dim]."""
        config = self.config
        joined = functional.linear(rms_norm(states, layer.attention_norm, config.rms_eps), layer.qkv)
        heads = joined.view(-1, config.heads + 2 * config.kv_heads, config.head_dim)
        queries_keys, value = heads.split_with_sizes([config.heads + config.kv_heads, config.kv_heads], dim=1)
        if layer.qk_norm is not None:
            queries_keys = functional.rms_norm(queries_keys, (config.head_dim,), None, config.rms_eps) * layer.qk_norm
        return queries_keys, value

    def _mlp(self, layer: _Layer, states: Tensor) -> Tensor:
        gate, up = functional.linear(rms_norm(states, layer.mlp_norm, self.config.rms_eps), layer.gate_up).chunk(2, dim=-1)
        return functional.linear(functional.silu(gate) * up, layer.down)


def rms_norm(states: Tensor, weight: Tensor, eps: float) -> Tensor:
    """states / sqrt(mean(states^2) + eps) * weight over the last axis, accumulated in fp32."""
    return functional.rms_norm(states, weight.shape, weight, eps)


def _layer(weights: Mapping[str, Tensor], config: DecoderConfig, index: int) -> _Layer:
    prefix = f"layers.{index}."
    query, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    width, inner = config.hidden_size, config.intermediate_size

    def tensor(name: str, *shape: int) -> Tensor:
        return _tensor(weights, f"{prefix}{name}.weight", *shape)

    return _Layer(
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
