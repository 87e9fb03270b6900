"""What states and words lose when the matrices of the thinker's blocks are e4m3, and what comes into their products, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from benchmarks.native.decoder_scenes import narrowed_weights, random_weights
from benchmarks.native.kv_errors import SPREAD
from torch_kit.decoder import Decoder
from torch_kit.decoder_weights import DecoderConfig
from torch_kit.fp8 import widened
from torch_kit.fused_decoder import WIDENED_TOKENS, FusedDecoder
from torch_kit.matrix import Matrix
from torch_kit.page_table import PageTable
from torch_kit.pages import PagePool, pages_for
from torch_kit.ragged import RaggedBatch
from torch_kit.tiles import Tiling

CHUNK = 512
"""Tokens of a forward."""
WORDS = 8192
"""Of the head, at once."""
LINES = 256
"""Of a matrix, at once."""
DEGREES, LOUD, LOUDNESS = 4, 256, 16.0
"""Outliers: elements of matrices are of Student's t with so many degrees; one channel of so many comes so much louder out of a norm."""
Row = dict[str, Any]
Made = tuple[str, str, Callable[[], Decoder | FusedDecoder], torch.dtype, int]
"""What is rounded; the path; a decoder; dtype of states and pages; tokens of a forward."""


def errors(config: DecoderConfig, words: int, context: int, device: torch.device, *, outliers: bool) -> Iterator[Row]:
    """One row for each manner: root of the mean squared error of final states in parts of their spread; over the last quarter of the
    context the Kullback-Leibler divergence (nats) of the next word from the truth's, its 99th percentile, and how often the likeliest is
    the same; then the same with the head in e4m3, too. The truth: plain, in fp32 (weights are those of bf16). `words`: of the head, random.
    """
    torch.manual_seed(9)
    served = torch.bfloat16
    weights = _weights(config, served, device, outliers=outliers)
    inputs = torch.randn(context, config.hidden_size, device=device).to(served)
    head = (torch.randn(words, config.hidden_size, device=device) * SPREAD / config.hidden_size**0.5).to(served)
    part = max(context // 4, 1)
    truth: tuple[Tensor, Tensor] | None = None
    for rounded, path, make, kind, chunk in _made(weights, config, device):
        states = _states(make(), inputs.to(kind), chunk)
        logs = _logs(states[-part:], head)
        if truth is None:
            truth = states, logs
        row: Row = {"weights": "outliers" if outliers else "normal", "rounded": rounded, "path": path, "states": str(kind).split(".")[-1]}
        row |= {"error": _spread(states, truth[0]), **_words(logs, truth[1], "")}
        yield row | _words(_logs(states[-part:], head, narrowed=True), truth[1], ", head e4m3")


def _weights(config: DecoderConfig, dtype: torch.dtype, device: torch.device, *, outliers: bool) -> dict[str, Tensor]:
    weights = random_weights(config, dtype, device)
    if outliers:
        for name, tensor in weights.items():
            if tensor.dim() == 2:
                for lines in torch.split(tensor, LINES):
                    # the sum of squares of two normal numbers is twice an exponential one
                    heavy = torch.empty(2, *lines.shape, device=device).exponential_().mean(0).sqrt()
                    # of variance degrees / (degrees - 2)
                    lines.copy_(lines.float() / heavy * ((DEGREES - 2) / DEGREES) ** 0.5)
            elif "layernorm" in name:
                tensor[:: LOUD // 2 if len(tensor) < LOUD else LOUD] *= LOUDNESS
    return weights


def _made(weights: Mapping[str, Tensor], config: DecoderConfig, device: torch.device) -> Iterator[Made]:
    """The truth first; one set of weights beside the given one is held at a time."""
    exact, served, some = torch.float32, torch.bfloat16, WIDENED_TOKENS

    def plain() -> dict[str, Tensor]:
        return {name: tensor.float() for name, tensor in weights.items()}

    def scaled(kind: torch.dtype) -> dict[str, Tensor]:
        return {name: tensor.to(kind) if tensor.dtype == served else tensor for name, tensor in narrowed_weights(weights, config).items()}

    def pool(kind: torch.dtype) -> PagePool:
        return PagePool(layers=config.layers, kv_heads=config.kv_heads, head_dim=config.head_dim, pages=2, dtype=kind, device=device)

    yield "nothing", "plain", lambda: Decoder(plain(), config, pool(exact)), exact, CHUNK
    yield "weights", "plain", lambda: Decoder(scaled(exact), config, pool(exact)), exact, CHUNK
    yield "both", "plain", lambda: Decoder(scaled(exact), config, pool(exact), rounded=True), exact, CHUNK
    yield "nothing", "plain", lambda: Decoder(weights, config, pool(served)), served, CHUNK
    yield "weights", "plain", lambda: Decoder(scaled(served), config, pool(served)), served, CHUNK
    yield "both", "plain", lambda: Decoder(scaled(served), config, pool(served), rounded=True), served, CHUNK
    if device.type == "cuda":
        yield "nothing", "fused", lambda: FusedDecoder(weights, config, pool(served)), served, CHUNK
        yield "weights", "fused, thin", lambda: FusedDecoder(scaled(served), config, pool(served)), served, 16
        yield "weights", "fused, widened", lambda: FusedDecoder(scaled(served), config, pool(served)), served, some
        yield "both", "fused, rounded", lambda: FusedDecoder(scaled(served), config, pool(served)), served, CHUNK


def _states(decoder: Decoder | FusedDecoder, inputs: Tensor, chunk: int) -> Tensor:
    """fp32 [context, hidden]."""
    pages, old = pages_for(len(inputs)), decoder.pool
    decoder.pool = PagePool(
        layers=old.layers, kv_heads=old.kv_heads, head_dim=old.head_dim, pages=pages + 1, dtype=old.dtype, device=old.device
    )
    table, made = PageTable(decoder.pool, pages), []
    for part in torch.split(inputs, chunk):
        batch = RaggedBatch.tiled([table.append(len(part))], Tiling(pages, 1))
        made.append(decoder.forward(part, batch)[: len(part)].float())
    return torch.cat(made)


def _logs(states: Tensor, head: Tensor, *, narrowed: bool = False) -> Tensor:
    """Logarithms of the next word's probabilities [rows, words], in fp32. `narrowed`: the head in e4m3."""
    scores = []
    for part in torch.split(head, WORDS):
        if narrowed:
            matrix = Matrix.narrowed(part)
            assert matrix.scales is not None
            scores.append(states @ widened(matrix.values, matrix.scales, torch.float32).T)
        else:
            scores.append(states @ part.float().T)
    return torch.log_softmax(torch.cat(scores, 1), -1)


def _spread(states: Tensor, truth: Tensor) -> float:
    return float((states - truth).square().mean().sqrt() / truth.std())


def _words(logs: Tensor, truth: Tensor, which: str) -> Row:
    divergence = (truth.exp() * (truth - logs)).sum(-1)
    same = (logs.argmax(-1) == truth.argmax(-1)).float().mean()
    return {
        f"divergence{which}": float(divergence.mean()),
        f"its p99{which}": float(divergence.quantile(0.99)),
        f"likeliest same{which}": float(same),
    }
