"""The fast path of `decoder.py`: the same forward over pages, with fused kernels between the matrix products."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional
from triton import knobs

from torch_kit.decoder_weights import DecoderConfig, DecoderWeights
from torch_kit.fused_steps import LibraryStep, RoundedStep, ThinStep, WidenedStep
from torch_kit.kernels.paged_attention import PagedAttention
from torch_kit.kernels.thin_product import MOST_LINES, Thin, ThinProducts
from torch_kit.pages import PagePool
from torch_kit.ragged import RaggedBatch
from torch_kit.rope import Rope

_LEAST = 16
"""Tensor cores take no smaller pages and heads."""
THIN_TOKENS = 16
"""Where thin products gain most: `decoder_kernels --parts whole` times both."""
WIDENED_TOKENS = 128
"""Of matrices in e4m3: up to so many tokens a product takes as long as its bytes, and what comes into it stays as it is; beyond, arithmetic
decides, and both sides are e4m3. An estimate: `decoder_kernels --parts products` times both."""
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
        widened_tokens: int = WIDENED_TOKENS,
        ways: Mapping[str, Thin] | None = None,
        padded: Mapping[int, int] | None = None,
    ) -> None:
        """`thin_tokens`: batches of up to so many tokens, at most 128, take the thin products, longer ones those of the library; None:
        `THIN_TOKENS` on CUDA, none in the interpreter. `widened_tokens`: where matrices are in e4m3, up to so many tokens, at most 128,
        they are widened within products; in longer batches the sources are rounded to e4m3, too, a token at a time. `ways`: how a product
        with such matrices or a thin one is run, by `qkv`, `out`, `gate_up` and `down`, instead of what `thin` chooses. `padded`: the lines
        of the library's products by tokens of the batch, instead of `PADDED`. Raises WeightError, and ValueError: sizes or a device that
        the kernels do not serve.
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
        if not 0 <= widened_tokens <= MOST_LINES:
            raise ValueError(f"widened_tokens: {widened_tokens}, not 0 to {MOST_LINES}")
        self.config = config
        self.pool = pool
        self.thin_tokens, self.widened_tokens, self._ways = thin_tokens, widened_tokens, ways or {}
        self._padded = PADDED if padded is None else padded
        self._products = ThinProducts(pool.device)
        self._rope = Rope(config.head_dim, config.rope_theta, pool.device)
        self._weights = DecoderWeights(weights, config)
        if self._weights.scaled and (config.hidden_size % _LEAST or config.intermediate_size % _LEAST):
            raise ValueError(f"weights: e4m3 of width {config.hidden_size}, {config.intermediate_size} within; not multiples of {_LEAST}")

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

    def _step(self, embeddings: Tensor, batch: RaggedBatch) -> LibraryStep | ThinStep:
        if batch.size <= self.thin_tokens:
            return ThinStep(self.config, embeddings, batch, self._products, self._ways)
        if self._weights.scaled and batch.size <= self.widened_tokens:
            return WidenedStep(self.config, embeddings, batch, self._products, self._ways)
        kind = RoundedStep if self._weights.scaled else LibraryStep
        return kind(self.config, embeddings, batch, self._padded.get(batch.size, batch.size))
