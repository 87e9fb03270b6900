"""One forward of the fused decoder, in the manners of its products: the library's, thin ones, and two of matrices in e4m3."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from torch_kit.decoder_weights import DecoderConfig, LayerWeights
from torch_kit.fp8 import FP8
from torch_kit.kernels.gated_product import gated_product
from torch_kit.kernels.page_writer import write_pages
from torch_kit.kernels.paged_attention import PagedAttention
from torch_kit.kernels.residual_norm import picked_norm, residual_norm
from torch_kit.kernels.rounded_product import narrow_lines, rounded_product
from torch_kit.kernels.thin_product import Thin, ThinProducts
from torch_kit.ragged import RaggedBatch
from torch_kit.rope import Rope


class LibraryStep:
    """One forward: the residual stream, and what kernels hand to each other."""

    def __init__(self, config: DecoderConfig, embeddings: Tensor, batch: RaggedBatch, lines: int) -> None:
        """`lines`: of the products, padding included."""
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
        self._join(layer)
        write_pages(self._joined, layer.qk_norm, rope, self._batch, self._query, self._prefix_query, cache, self._config.rms_eps, scales)
        attention(self._batch, self._query, self._prefix_query, cache, self._mixed.view_as(self._query), scales=scales)
        self._project(layer)
        self._states = self._out

    def widen(self, layer: LayerWeights) -> None:
        """The second half."""
        normed, out, _, _, inner, gate_up = self._padded
        self._norm(layer.mlp_norm)
        torch.mm(normed, layer.gate_up.values.t(), out=gate_up)
        gated_product(self._gate_up, self._inner)
        torch.mm(inner, layer.down.values.t(), out=out)

    def finish(self, weight: Tensor, *, only_sampled: bool) -> Tensor:
        """The final norm, of all tokens or of those that are sampled."""
        if not only_sampled:
            self._norm(weight)
            return self._normed
        out = self._normed.new_empty((len(self._batch.sampled), self._normed.shape[1]))
        picked_norm(self._states, self._residual, weight, out, self._batch.sampled, self._config.rms_eps)
        return out

    def _join(self, layer: LayerWeights) -> None:
        """Queries, keys and values of the normed states."""
        self._norm(layer.attention_norm)
        torch.mm(self._padded[0], layer.qkv.values.t(), out=self._padded[3])

    def _project(self, layer: LayerWeights) -> None:
        """Of what attention mixed."""
        torch.mm(self._padded[2], layer.out.values.t(), out=self._padded[1])

    def _norm(self, weight: Tensor) -> None:
        residual_norm(self._states, self._residual, weight, self._normed, self._config.rms_eps, first=self._is_first)
        self._is_first = False


class WidenedStep(LibraryStep):
    """Matrices in e4m3 are widened in products that stream them once; the gate is within."""

    def __init__(
        self, config: DecoderConfig, embeddings: Tensor, batch: RaggedBatch, products: ThinProducts, ways: Mapping[str, Thin]
    ) -> None:
        super().__init__(config, embeddings, batch, batch.size)
        self._products, self._ways = products, ways

    def widen(self, layer: LayerWeights) -> None:
        """The second half."""
        self._norm(layer.mlp_norm)
        self._products(self._normed, layer.gate_up, self._inner, gated=True, how=self._ways.get("gate_up"))
        self._products(self._inner, layer.down, self._out, how=self._ways.get("down"))

    def _join(self, layer: LayerWeights) -> None:
        self._norm(layer.attention_norm)
        self._products(self._normed, layer.qkv, self._joined, how=self._ways.get("qkv"))

    def _project(self, layer: LayerWeights) -> None:
        self._products(self._mixed, layer.out, self._out, how=self._ways.get("out"))


class RoundedStep(LibraryStep):
    """Both sides of a product are e4m3: what comes into it is rounded, a token at a time, by the kernel that writes it."""

    def __init__(self, config: DecoderConfig, embeddings: Tensor, batch: RaggedBatch, lines: int) -> None:
        super().__init__(config, embeddings, batch, lines)
        # one after the other: norms, what attention mixed, what the gate let through
        self._codes = embeddings.new_empty(
            lines * max(config.intermediate_size, config.heads * config.head_dim, config.hidden_size), dtype=FP8
        )
        self._marks = embeddings.new_empty(lines, dtype=torch.float32)

    def widen(self, layer: LayerWeights) -> None:
        """The second half."""
        _, out, _, _, inner, gate_up = self._padded
        rounded_product(self._normed_codes(layer.mlp_norm), self._marks, layer.gate_up, gate_up)
        codes = self._of(inner)
        gated_product(self._gate_up, codes[: self._batch.size], scales=self._marks)
        rounded_product(codes, self._marks, layer.down, out)

    def _join(self, layer: LayerWeights) -> None:
        rounded_product(self._normed_codes(layer.attention_norm), self._marks, layer.qkv, self._padded[3])

    def _project(self, layer: LayerWeights) -> None:
        codes = self._of(self._padded[2])
        narrow_lines(self._mixed, codes[: self._batch.size], self._marks)
        rounded_product(codes, self._marks, layer.out, self._padded[1])

    def _normed_codes(self, weight: Tensor) -> Tensor:
        codes, eps = self._of(self._padded[0]), self._config.rms_eps
        residual_norm(self._states, self._residual, weight, codes[: self._batch.size], eps, first=self._is_first, scales=self._marks)
        self._is_first = False
        return codes

    def _of(self, source: Tensor) -> Tensor:
        """e4m3 in the shape of `source`, over what was there before."""
        return self._codes[: source.numel()].view(source.shape)


class ThinStep:
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
