"""The fast path of `decoder.py`: the same forward over pages, with fused kernels between the matrix products."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional
from triton import knobs

from torch_kit.decoder_weights import DecoderConfig, DecoderWeights, LayerWeights
from torch_kit.kernels.gated_product import gated_product
from torch_kit.kernels.page_writer import write_pages
from torch_kit.kernels.paged_attention import PagedAttention
from torch_kit.kernels.residual_norm import picked_norm, residual_norm
from torch_kit.pages import PagePool
from torch_kit.ragged import RaggedBatch
from torch_kit.rope import Rope

_LEAST = 16
"""Tensor cores take no smaller pages and heads."""


class FusedDecoder:
    """As `Decoder`: the same weights, sizes and pages. Needs batches with tiles, and CUDA or Triton's interpreter.

    A forward reads every size from the shape of its batch and every other number from the device, so that a graph of it serves all
    batches of that shape (`RaggedBatch.shape`). What it allocates, it allocates once for all layers, in the pool of the graph.
    """

    def __init__(self, weights: Mapping[str, Tensor], config: DecoderConfig, pool: PagePool) -> None:
        """Raises WeightError, and ValueError: sizes or a device that the kernels do not serve."""
        if pool.device.type != "cuda" and not knobs.runtime.interpret:
            raise ValueError(f"pool: on {pool.device.type}, not on CUDA")
        for name, value in (("page", pool.page), ("head_dim", config.head_dim)):
            if value < _LEAST or value & (value - 1):
                raise ValueError(f"{name}: {value} is no power of two from {_LEAST} on")
        self.config = config
        self.pool = pool
        self._rope = Rope(config.head_dim, config.rope_theta, pool.device)
        self._weights = DecoderWeights(weights, config)

    @torch.no_grad()
    def forward(self, embeddings: Tensor, batch: RaggedBatch, *, only_sampled: bool = False) -> Tensor:
        """Hidden states after the final norm [N, hidden_size]; keys and values of the batch's tokens are in the pages then.

        `embeddings` [N, hidden_size], or [batch.count, hidden_size] without rows for the padding. `only_sampled`: the states of
        `batch.sampled` alone, [S, hidden_size] with its padding. Raises ValueError: a wrong shape, no tiles.
        """
        config = self.config
        if embeddings.shape[0] == batch.count < batch.size:
            embeddings = functional.pad(embeddings, (0, 0, 0, batch.size - batch.count))
        if tuple(embeddings.shape) != (batch.size, config.hidden_size):
            raise ValueError(f"embeddings: {tuple(embeddings.shape)}, not {(batch.size, config.hidden_size)}")
        attention = PagedAttention(batch, config.heads, config.kv_heads, config.head_dim)
        step = _Step(config, embeddings.contiguous(), batch)
        for index, layer in enumerate(self._weights.layers):
            step.attend(layer, attention, self._rope, self.pool.layer(index))
            step.widen(layer)
        return step.finish(self._weights.norm, only_sampled=only_sampled)


class _Step:
    """One forward: the residual stream, and what kernels hand to each other."""

    def __init__(self, config: DecoderConfig, embeddings: Tensor, batch: RaggedBatch) -> None:
        size, turned = batch.size, (batch.size, config.heads, config.head_dim)
        self._config, self._batch = config, batch
        self._states = embeddings
        self._is_first = True
        self._residual, self._normed, self._out = (torch.empty_like(embeddings) for _ in range(3))
        self._joined = embeddings.new_empty((size, (config.heads + 2 * config.kv_heads) * config.head_dim))
        self._query, self._prefix_query, self._mixed = (embeddings.new_empty(turned) for _ in range(3))
        self._gate_up = embeddings.new_empty((size, 2 * config.intermediate_size))
        self._inner = embeddings.new_empty((size, config.intermediate_size))

    def attend(self, layer: LayerWeights, attention: PagedAttention, rope: Rope, cache: Tensor) -> None:
        """The first half of a block."""
        eps = self._config.rms_eps
        self._norm(layer.attention_norm)
        torch.mm(self._normed, layer.qkv.t(), out=self._joined)
        write_pages(self._joined, layer.qk_norm, rope, self._batch, self._query, self._prefix_query, cache, eps)
        attention(self._batch, self._query, self._prefix_query, cache, self._mixed)
        self._states = torch.mm(self._mixed.flatten(1), layer.out.t(), out=self._out)

    def widen(self, layer: LayerWeights) -> None:
        """The second half."""
        self._norm(layer.mlp_norm)
        torch.mm(self._normed, layer.gate_up.t(), out=self._gate_up)
        gated_product(self._gate_up, self._inner)
        self._states = torch.mm(self._inner, layer.down.t(), out=self._out)

    def finish(self, weight: Tensor, *, only_sampled: bool) -> Tensor:
        """The final norm, of all tokens or of those that are sampled."""
        if not only_sampled:
            self._norm(weight)
            return self._normed
        out = self._normed.new_empty((len(self._batch.sampled), self._normed.shape[1]))
        picked_norm(self._states, self._residual, weight, out, self._batch.sampled, self._config.rms_eps)
        return out

    def _norm(self, weight: Tensor) -> None:
        residual_norm(self._states, self._residual, weight, self._normed, self._config.rms_eps, first=self._is_first)
        self._is_first = False
