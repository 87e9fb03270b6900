"""A decoder-only transformer over pages: Qwen3 (with query and key norms) and Llama (without)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from torch_kit.attention import Attention, PlainAttention
from torch_kit.decoder_weights import DecoderConfig, DecoderWeights, LayerWeights, WeightError
from torch_kit.pages import PagePool
from torch_kit.ragged import RaggedBatch
from torch_kit.rope import Rope, rotate

__all__ = ["Decoder", "DecoderConfig", "WeightError", "rms_norm"]


class Decoder:
    """Pre-norm blocks: attention with rotary positions and grouped keys, SwiGLU; a final norm.

    Weights are named as `DecoderWeights` says and used in their own dtype and on their own device, which the pool shares. Norms and
    rotations are fp32. Matrices in e4m3 are widened as they are used. `rounded`: what they are multiplied with is rounded to e4m3, too,
    a token at a time, as `FusedDecoder` does in large batches.
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        config: DecoderConfig,
        pool: PagePool,
        attention: Attention | None = None,
        *,
        rounded: bool = False,
    ) -> None:
        """Raises WeightError."""
        self.config = config
        self.pool = pool
        self._attention = attention or PlainAttention(config.heads // config.kv_heads)
        self._rope = Rope(config.head_dim, config.rope_theta, pool.device)
        self._weights = DecoderWeights(weights, config)
        self._rounded = rounded

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
        for index, layer in enumerate(self._weights.layers):
            queries_keys, value = self._project(layer, states)
            query, key = rotate(queries_keys, *rotation).split_with_sizes([self.config.heads, self.config.kv_heads], dim=1)
            self.pool.write(index, pages, offsets, torch.stack((key, value), dim=1))
            prefix_query = None
            if prefix_rotation is not None:
                prefix_query = rotate(queries_keys[:, : self.config.heads], *prefix_rotation)
            mixed = self._attention(plan, query, prefix_query, self.pool.layer(index), self.pool.scale(index))
            states = states + layer.out(mixed.flatten(1), rounded=self._rounded)
            states = states + self._mlp(layer, states)
        return rms_norm(states, self._weights.norm, self.config.rms_eps)

    def _project(self, layer: LayerWeights, states: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys [N, heads + kv_heads, head_dim], not turned yet, and values [N, kv_heads, head_dim]."""
        config = self.config
        joined = layer.qkv(rms_norm(states, layer.attention_norm, config.rms_eps), rounded=self._rounded)
        heads = joined.view(-1, config.heads + 2 * config.kv_heads, config.head_dim)
        queries_keys, value = heads.split_with_sizes([config.heads + config.kv_heads, config.kv_heads], dim=1)
        if layer.qk_norm is not None:
            queries_keys = functional.rms_norm(queries_keys, (config.head_dim,), None, config.rms_eps) * layer.qk_norm
        return queries_keys, value

    def _mlp(self, layer: LayerWeights, states: Tensor) -> Tensor:
        gate, up = layer.gate_up(rms_norm(states, layer.mlp_norm, self.config.rms_eps), rounded=self._rounded).chunk(2, dim=-1)
        return layer.down(functional.silu(gate) * up, rounded=self._rounded)


def rms_norm(states: Tensor, weight: Tensor, eps: float) -> Tensor:
    """states / sqrt(mean(states^2) + eps) * weight over the last axis, accumulated in fp32."""
    return functional.rms_norm(states, weight.shape, weight, eps)
