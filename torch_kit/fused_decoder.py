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
from torch_kit.kernels.thin_product import MOST_LINES, Thin, ThinProducts
from torch_kit.pages import PagePool
from torch_kit.ragged import RaggedBatch
from torch_kit.rope import Rope

_LEAST = 16
"""Tensor cores take no smaller pages and heads."""
THIN_TOKENS = 16
"""Where thin products gain most: `decoder_kernels --parts whole` times both."""
PADDED: dict[int, int] = {}
"""Tokens of a batch: lines of its products, where the library is faster with more of them (`decoder_kernels --parts products`)."""


class FusedDecoder:
    """As `Decoder`: the same weights, sizes and pages. Needs batches with tiles, and CUDA or Triton's interpreter.

    A forward reads every size from the shape of its batch and every other number from the device, so that a graph of it serves all
    batches of that shape (`RaggedBatch.shape`). What it allocates, it allocates once for all layers, in the pool of the graph.
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        config: DecoderConfig,
        pool: PagePool,
        *,
        thin_tokens: int | None = None,
        ways: Mapping[str, Thin] | None = None,
        padded: Mapping[int, int] | None = None,
    ) -> None:
        """`thin_tokens`: batches of up to so many tokens, at most 128, take the thin products, longer ones those of the library; None:
        `THIN_TOKENS` on CUDA, none in the interpreter. `ways`: how a thin product is run, by `qkv`, `out`, `gate_up` and `down`, instead of
        what `thin` chooses. `padded`: the lines of the library's products by tokens of the batch, instead of `PADDED`. Raises WeightError,
        and ValueError: sizes or a device that the kernels do not serve.
        """
        if pool.device.type != "cuda" and not knobs.runtime.interpret:
            raise ValueError(f"pool: on {pool.device.type}, not on CUDA")
        # fp8 elements are read by twos
        for name, value, least in (("page", pool.page, _LEAST), ("head_dim", config.head_dim, _LEAST * (1 + (pool.scales is not None)))):
            if value < least or value & (value - 1):
                raise ValueError(f"{name}: {value} is no power of two from {least} on")
        if thin_tokens is None:
            thin_tokens = THIN_TOKENS if pool.device.type == "cuda" else 0
        if not 0 <= thin_tokens <= MOST_LINES:
            raise ValueError(f"thin_tokens: {thin_tokens}, not 0 to {MOST_LINES}")
        self.config = config
        self.pool = pool
        self.thin_tokens, self._ways = thin_tokens, ways or {}
        self._padded = PADDED if padded is None else padded
        self._products = ThinProducts(pool.device)
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
        attention = PagedAttention(batch, config.heads, config.kv_heads, config.head_dim, fp8=self.pool.scales is not None)
        step = self._step(embeddings.contiguous(), batch)
        for index, layer in enumerate(self._weights.layers):
            step.attend(layer, attention, self._rope, self.pool.layer(index), self.pool.scale(index))
            step.widen(layer)
        return step.finish(self._weights.norm, only_sampled=only_sampled)

    def _step(self, embeddings: Tensor, batch: RaggedBatch) -> _Step | _ThinStep:
        if batch.size <= self.thin_tokens:
            return _ThinStep(self.config, embeddings, batch, self._products, self._ways)
        return _Step(self.config, embeddings, batch, self._padded.get(batch.size, batch.size))


class _Step:
    """One forward: the residual stream, and what kernels hand to each other."""

    def __init__(self, config: DecoderConfig, embeddings: Tensor, batch: RaggedBatch, lines: int) -> None:
        size = batch.size
        self._config, self._batch = config, batch
        self._states = embeddings
        self._is_first = True
        self._residual = torch.empty_like(embeddings)
        queries = config.heads * config.head_dim
        widths = (config.hidden_size,) * 2 + (queries, queries + 2 * config.kv_heads * config.head_dim, config.intermediate_size)
        # lines behind the batch's are what they are: they come into no other
        self._padded = [embeddings.new_empty((lines, width)) for width in (*widths, 2 * config.intermediate_size)]
        self._normed, self._out, self._mixed, self._joined, self._inner, self._gate_up = (each[:size] for each in self._padded)
        self._query, self._prefix_query = (embeddings.new_empty((size, config.heads, config.head_dim)) for _ in range(2))

    def attend(self, layer: LayerWeights, attention: PagedAttention, rope: Rope, cache: Tensor, scales: Tensor | None) -> None:
        """The first half of a block."""
        normed, out, mixed, joined, _, _ = self._padded
        self._norm(layer.attention_norm)
        torch.mm(normed, layer.qkv.t(), out=joined)
        write_pages(self._joined, layer.qk_norm, rope, self._batch, self._query, self._prefix_query, cache, self._config.rms_eps, scales)
        attention(self._batch, self._query, self._prefix_query, cache, self._mixed.view_as(self._query), scales=scales)
        torch.mm(mixed, layer.out.t(), out=out)
        self._states = self._out

    def widen(self, layer: LayerWeights) -> None:
        """The second half."""
        normed, out, _, _, inner, gate_up = self._padded
        self._norm(layer.mlp_norm)
        torch.mm(normed, layer.gate_up.t(), out=gate_up)
        gated_product(self._gate_up, self._inner)
        torch.mm(inner, layer.down.t(), out=out)

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


class _ThinStep:
    """One forward of few tokens: norm, gate and residual sum are within the products, so that a block has few kernels."""

    def __init__(
        self, config: DecoderConfig, embeddings: Tensor, batch: RaggedBatch, products: ThinProducts, ways: Mapping[str, Thin]
    ) -> None:
        size, turned = batch.size, (batch.size, config.heads, config.head_dim)
        self._config, self._batch, self._products, self._ways = config, batch, products, ways
        self._states, self._residual = embeddings, torch.empty_like(embeddings)
        self._joined = embeddings.new_empty((size, (config.heads + 2 * config.kv_heads) * config.head_dim))
        self._query, self._prefix_query, self._mixed = (embeddings.new_empty(turned) for _ in range(3))
        self._inner = embeddings.new_empty((size, config.intermediate_size))

    def attend(self, layer: LayerWeights, attention: PagedAttention, rope: Rope, cache: Tensor, scales: Tensor | None) -> None:
        """The first half of a block."""
        eps, ways = self._config.rms_eps, self._ways
        self._products(self._states, layer.qkv, self._joined, norm=layer.attention_norm, eps=eps, how=ways.get("qkv"))
        write_pages(self._joined, layer.qk_norm, rope, self._batch, self._query, self._prefix_query, cache, eps, scales)
        attention(self._batch, self._query, self._prefix_query, cache, self._mixed, scales=scales)
        # the first sum leaves the caller's embeddings as they are
        self._products(self._mixed.flatten(1), layer.out, self._residual, residual=self._states, how=ways.get("out"))
        self._states = self._residual

    def widen(self, layer: LayerWeights) -> None:
        """The second half."""
        eps, ways = self._config.rms_eps, self._ways
        self._products(self._states, layer.gate_up, self._inner, norm=layer.mlp_norm, eps=eps, gated=True, how=ways.get("gate_up"))
        self._products(self._inner, layer.down, self._residual, residual=self._residual, how=ways.get("down"))

    def finish(self, weight: Tensor, *, only_sampled: bool) -> Tensor:
        """The final norm, of all tokens or of those that are sampled."""
        batch, eps = self._batch, self._config.rms_eps
        if not only_sampled:
            out = torch.empty_like(self._residual)
            residual_norm(self._states, torch.empty_like(out), weight, out, eps, first=True)
            return out
        out = self._residual.new_empty((len(batch.sampled), self._residual.shape[1]))
        picked_norm(self._states, None, weight, out, batch.sampled, eps)
        return out
