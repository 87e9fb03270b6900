"""What states and words lose when the thinker's keys and values are bf16 or fp8: a context that is written through the cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.native.decoder_scenes import random_weights
from torch_kit.decoder import Decoder
from torch_kit.decoder_weights import DecoderConfig
from torch_kit.fp8 import FP8
from torch_kit.fused_decoder import FusedDecoder
from torch_kit.page_table import PageTable
from torch_kit.pages import PagePool, pages_for
from torch_kit.ragged import RaggedBatch
from torch_kit.tiles import Tiling

CHUNK = 512
"""Tokens of a forward. All of them meet the cache: keys and values are written before anything is read."""
SPREAD = 4.0
"""Of the logits, so that a few words have most of the mass, as with a trained head."""
SHARP = 1.5
"""Query and key norms of sharp attention are so large on average, and of unequal channels: scores spread by about 4 instead of 1."""
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", FP8: "fp8"}
Row = dict[str, Any]
Run = tuple[str, Decoder | FusedDecoder, torch.dtype, torch.dtype]
"""How it is called; decoder; dtypes of weights and pages."""


def errors(config: DecoderConfig, words: int, context: int, device: torch.device, *, sharp: bool) -> Iterator[Row]:
    """One row for each pair of dtypes: root of the mean squared error of final states in parts of their spread, in the first and the last
    eighth of the context; over the last, Kullback-Leibler divergence (nats) of the next word from the truth's, and how often the likeliest
    is the same. The truth: plain, weights and pages in fp32 (weights are those of bf16). `words`: of the head, random.
    """
    torch.manual_seed(9)
    served = torch.bfloat16 if device.type == "cuda" else torch.float32
    weights = _weights(config, served, device, sharp=sharp)
    inputs = torch.randn(context, config.hidden_size, device=device).to(served)
    head = (torch.randn(words, config.hidden_size, device=device) * SPREAD / config.hidden_size**0.5).to(served)
    part = max(context // 8, 1)
    truth = bf16 = None
    for path, decoder, kind, kept in _runs(weights, config, served, device):
        states = _states(decoder, inputs.to(kind), kept)
        logs = torch.log_softmax(states[-part:] @ head.float().T, -1)
        if truth is None:
            truth = states, logs
        row: Row = {"attention": "sharp" if sharp else "flat", "weights": NAMES[kind], "pages": NAMES[kept], "path": path}
        row |= {"error, first eighth": _spread(states[:part], truth[0][:part]), "last": _spread(states[-part:], truth[0][-part:])}
        row |= _words(logs, truth[1], "")
        if kept == torch.bfloat16 and path == "fused":
            bf16 = logs
        if kept == FP8 and bf16 is not None:
            row |= _words(logs, bf16, " to bf16 served")
        yield row


def _weights(config: DecoderConfig, dtype: torch.dtype, device: torch.device, *, sharp: bool) -> dict[str, Tensor]:
    weights = random_weights(config, dtype, device)
    for name, tensor in weights.items() if sharp else ():
        if "q_norm" in name or "k_norm" in name:
            tensor.copy_(SHARP * torch.randn(tensor.shape, device=device).mul(0.5).exp())
    return weights


def _runs(weights: dict[str, Tensor], config: DecoderConfig, served: torch.dtype, device: torch.device) -> Iterator[Run]:
    """The truth first; one set of weights is on the device at a time."""
    pool = _pool(config, 1, torch.float32, device)
    exact = Decoder({name: tensor.float() for name, tensor in weights.items()}, config, pool)
    for kept in (torch.float32, torch.bfloat16, FP8):
        yield "plain", exact, torch.float32, kept
    del exact
    fused = FusedDecoder(weights, config, pool)
    for kept in (served, FP8):
        yield "fused", fused, served, kept
    del fused
    plain = Decoder(weights, config, pool)
    for kept in (torch.float32, served, FP8) if served != torch.float32 else (FP8,):
        yield "plain", plain, served, kept


def _pool(config: DecoderConfig, pages: int, dtype: torch.dtype, device: torch.device) -> PagePool:
    return PagePool(layers=config.layers, kv_heads=config.kv_heads, head_dim=config.head_dim, pages=pages + 1, dtype=dtype, device=device)


def _states(decoder: Decoder | FusedDecoder, inputs: Tensor, kept: torch.dtype) -> Tensor:
    """fp32 [context, hidden]."""
    pages = pages_for(len(inputs))
    decoder.pool = _pool(decoder.config, pages, kept, inputs.device)
    table, made = PageTable(decoder.pool, pages), []
    for part in torch.split(inputs, CHUNK):
        batch = RaggedBatch.tiled([table.append(len(part))], Tiling(pages, 1))
        made.append(decoder.forward(part, batch)[: len(part)].float())
    return torch.cat(made)


def _spread(states: Tensor, truth: Tensor) -> float:
    return float((states - truth).square().mean().sqrt() / truth.std())


def _words(logs: Tensor, truth: Tensor, to: str) -> Row:
    divergence = (truth.exp() * (truth - logs)).sum(-1)
    same = (logs.argmax(-1) == truth.argmax(-1)).float().mean()
    return {
        f"divergence{to}": float(divergence.mean()),
        f"its p99{to}": float(divergence.quantile(0.99)),
        f"likeliest same{to}": float(same),
    }
