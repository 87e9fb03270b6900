"""The vocoder's kernels, one by one: inputs of the served shapes, the same in torch, the least that must be read and computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.native.floors import Floor
from minicpmo45.config import FlowConfig
from vocoder_svc.minicpmo45.attention import Keys, load, store
from vocoder_svc.minicpmo45.attention import attend as attend_plain
from vocoder_svc.minicpmo45.hift import SNAKE_EPS
from vocoder_svc.minicpmo45.kernels.attention import HeadNorms, attend
from vocoder_svc.minicpmo45.kernels.euler import euler
from vocoder_svc.minicpmo45.kernels.norm import norm
from vocoder_svc.minicpmo45.kernels.product import Activation, multiplied
from vocoder_svc.minicpmo45.kernels.snake import snake
from vocoder_svc.minicpmo45.kernels.tiles import AttentionTile, ProductTile, RowTile, SnakeTile
from vocoder_svc.minicpmo45.kernels.unfold import Memory, unfold_mish, unfold_norm
from vocoder_svc.minicpmo45.retention import CHUNK_FRAMES, KEPT_FRAMES, RING_FRAMES, Newest

EPS = 1e-6
ROW_TILES = [RowTile(rows, warps) for rows, warps in ((1, 1), (1, 4), (2, 4), (4, 4), (8, 8))]
PRODUCT_TILES = [
    ProductTile(*sizes)
    for sizes in (
        (16, 32, 128, 4, 4),
        (32, 32, 64, 4, 5),
        (32, 64, 64, 4, 5),
        (64, 64, 64, 4, 4),
        (64, 128, 64, 4, 4),
        (128, 128, 64, 8, 3),
        (128, 128, 64, 8, 4),
        (128, 256, 64, 8, 3),
    )
]
ATTENTION_TILES = [
    AttentionTile(*sizes) for sizes in ((16, 32, 1, 3), (16, 64, 4, 3), (16, 128, 4, 2), (32, 64, 4, 3), (64, 32, 4, 3), (64, 64, 4, 2))
]
SNAKE_TILES = [SnakeTile(*sizes) for sizes in ((1, 512, 4), (1, 1024, 4), (1, 2048, 4), (2, 1024, 4), (4, 1024, 8))]


class Case(msgspec.Struct, frozen=True):
    """One kernel at one shape and dtype."""

    kernel: str
    copies: int
    """Sets of weights or caches, taken in turn, so that they are not found in L2 where the flow would not find them."""
    fused: Callable[[int, Any], Tensor]
    """Of a copy, by a tile (None: the table's)."""
    plain: Callable[[int, torch.dtype], Tensor]
    """Torch's operations on the same inputs in another dtype."""
    floor: Floor
    tiles: Sequence[Any] = ()


class Inputs:
    """Draws of one device and dtype."""

    def __init__(self, config: FlowConfig, sessions: int, device: torch.device, dtype: torch.dtype, *, tf32: bool, copies: int) -> None:
        self.config, self.sessions, self.device, self.dtype, self.tf32, self.copies = config, sessions, device, dtype, tf32, copies
        self.width = config.dit_hidden
        self.tokens = sessions * 2 * CHUNK_FRAMES
        self._generator = torch.Generator(device).manual_seed(1)

    def __call__(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.randn(shape, generator=self._generator, device=self.device).to(dtype or self.dtype)

    @property
    def kind(self) -> str:
        return "bf16" if self.dtype == torch.bfloat16 else "tf32" if self.tf32 else "fp32"

    @property
    def row(self) -> int:
        """Bytes of one tensor [T, width]."""
        return self.tokens * self.width * self.dtype.itemsize


def cases(draw: Inputs, prompt: int) -> Iterator[Case]:
    """Every kernel of a block; `prompt`: frames of the voice."""
    yield from _norms(draw)
    width, inner = draw.width, int(draw.config.dit_hidden * draw.config.dit_mlp_ratio)
    heads = draw.config.dit_heads * draw.config.dit_head_dim
    yield _product(draw, "product, q k v", 3 * heads, width, "none")
    yield _product(draw, "product, projection", width, heads, "none")
    yield _product(draw, "product, convolution", width, 3 * width, "none")
    yield _product(draw, "product, MLP in and GELU", inner, width, "gelu")
    yield _product(draw, "product, MLP out", width, inner, "none")
    yield _attention(draw, prompt)
    yield _euler(draw)
    yield _snake(draw)


def _norms(draw: Inputs) -> Iterator[Case]:
    width, tokens, row, dtype = draw.width, draw.tokens, draw.row, draw.dtype
    h, branch, kept = draw(tokens, width, dtype=torch.float32), draw(tokens, width), torch.empty(tokens, width, device=draw.device)
    gate, scale, shift = draw(3, width, dtype=torch.float32)
    # what the kernels write in place goes elsewhere here, or the sum would grow with every run
    zero = torch.zeros_like(gate)
    fresh = torch.full((draw.sessions,), CHUNK_FRAMES, device=draw.device)
    held = draw(draw.sessions, 2, 2 * width, 2)
    memory = Memory(held, torch.empty_like(held), fresh, 0)
    before = held[:, :, :width].reshape(-1, width, 2)

    def unfolded(y: Tensor) -> Tensor:
        padded = torch.cat((before.to(y).transpose(1, 2), y.view(-1, CHUNK_FRAMES, width)), 1)
        return padded.unfold(1, 3, 1).transpose(2, 3).reshape(tokens, -1)

    def normed(x: Tensor, kind: torch.dtype) -> Tensor:
        return functional.layer_norm(x, (width,), eps=EPS) * scale.to(kind) + shift.to(kind)

    def summed(by: Tensor, kind: torch.dtype) -> Tensor:
        return normed(h.to(kind) + by.to(kind) * branch.to(kind), kind)

    yield Case(
        "residual and norm",
        1,
        lambda _, tile: norm(h, scale, shift, EPS, dtype, branch=branch, gate=gate, kept=kept, tile=tile),
        lambda _, kind: summed(gate, kind),
        Floor(8 * tokens * width + 2 * row, 0),
        ROW_TILES,
    )
    yield Case(
        "residual, norm, unfold",
        1,
        lambda _, tile: unfold_norm(h, branch, zero, scale, shift, EPS, dtype, memory, CHUNK_FRAMES, tile),
        lambda _, kind: unfolded(summed(zero, kind)),
        Floor(8 * tokens * width + 4 * row, 0),
        ROW_TILES,
    )
    yield Case(
        "norm, mish, unfold",
        1,
        lambda _, tile: unfold_mish(branch, scale, shift, EPS, memory, CHUNK_FRAMES, tile),
        lambda _, kind: unfolded(functional.mish(normed(branch.to(kind), kind))),
        Floor(4 * row, 0),
        ROW_TILES,
    )


def _product(draw: Inputs, name: str, outputs: int, inputs: int, activation: Activation) -> Case:
    x, bias = draw(draw.tokens, inputs), draw(outputs)
    weights = [draw(outputs, inputs) / inputs**0.5 for _ in range(draw.copies)]
    element = draw.dtype.itemsize

    def plain(copy: int, kind: torch.dtype) -> Tensor:
        made = functional.linear(x.to(kind), weights[copy].to(kind), bias.to(kind))
        return functional.gelu(made, approximate="tanh") if activation == "gelu" else made

    return Case(
        name,
        draw.copies,
        lambda copy, tile: multiplied(x, weights[copy], bias, activation=activation, tf32=draw.tf32, dtype=draw.dtype, tile=tile),
        plain,
        Floor(element * (outputs * inputs + draw.tokens * (outputs + inputs)), 2 * draw.tokens * outputs * inputs, draw.kind),
        [msgspec.structs.replace(tile, depth=tile.depth * 2 // element) for tile in PRODUCT_TILES],
    )


def _attention(draw: Inputs, prompt: int) -> Case:
    heads, dim, sessions = draw.config.dit_heads, draw.config.dit_head_dim, draw.sessions
    frames = prompt + sessions * RING_FRAMES
    rows = [[0, prompt, prompt + n * RING_FRAMES, 400 + 50 * (n % 3), CHUNK_FRAMES] for n in range(sessions)]
    keys: Keys = Newest.attention(torch.tensor(rows, device=draw.device), prompt, CHUNK_FRAMES // 2).dit
    spans = keys.spans
    assert spans is not None
    arenas = [draw(2, 2, heads, frames, dim) for _ in range(draw.copies)]
    qkv, norms = draw(draw.tokens, 3 * heads * dim), HeadNorms(draw(4, dim), 1e-5)

    def plain(copy: int, kind: torch.dtype) -> Tensor:
        arena = arenas[copy] if kind == draw.dtype else arenas[copy].to(kind)
        split = qkv.to(kind).view(sessions, 2, CHUNK_FRAMES, 3, heads, dim).permute(3, 0, 1, 4, 2, 5)
        query = functional.layer_norm(split[0], (dim,), *norms.parameters[:2].to(kind), norms.eps)
        key = functional.layer_norm(split[1], (dim,), *norms.parameters[2:].to(kind), norms.eps)
        store(arena, keys, key, split[2])
        return attend_plain(query, *load(arena, keys), keys).transpose(2, 3).reshape(draw.tokens, -1)

    cached = draw.dtype.itemsize * 4 * heads * dim * (prompt + sessions * RING_FRAMES)
    seen = prompt + KEPT_FRAMES + CHUNK_FRAMES
    return Case(
        "attention",
        draw.copies,
        lambda copy, tile: attend(qkv, arenas[copy], spans, CHUNK_FRAMES, norms=norms, tf32=draw.tf32, tile=tile),
        plain,
        Floor(cached + 4 * draw.row, 4 * draw.tokens * heads * dim * seen, draw.kind),
        ATTENTION_TILES,
    )


def _euler(draw: Inputs) -> Case:
    mels, sessions = draw.config.mels, draw.sessions
    x, speed = draw(sessions, CHUNK_FRAMES, mels, dtype=torch.float32), draw(sessions, 2, CHUNK_FRAMES, mels, dtype=torch.float32)

    def plain(_: int, kind: torch.dtype) -> Tensor:
        guided, free = speed.to(kind).unbind(1)
        return x.to(kind) + 0.2 * (1.7 * guided - 0.7 * free)

    return Case("Euler step", 1, lambda _, tile: euler(x, speed, 0.2, 0.7), plain, Floor(16 * x.numel(), 0))


def _snake(draw: Inputs) -> Case:
    """Of HiFT's last and longest stage, which is fp32 always."""
    channels, size = draw.width // 8, 120 * 58 + 1
    x, branch = (draw(draw.sessions, channels, size, dtype=torch.float32) for _ in range(2))
    alpha, bias = draw(2, channels, dtype=torch.float32).abs() + 0.5
    kept, lengths = torch.empty_like(x), torch.full((draw.sessions,), size - 100, device=draw.device)

    def plain(_: int, kind: torch.dtype) -> Tensor:
        kind = torch.float64 if kind == torch.float64 else torch.float32
        total, rate = x.to(kind) + (branch.to(kind) + bias.to(kind)[:, None]), alpha.to(kind)[:, None]
        waved = total + torch.sin(total * rate).square() / (rate + SNAKE_EPS)
        counted = torch.arange(size, device=draw.device) < lengths[:, None]
        return functional.pad(torch.where(counted[:, None], waved, 0.0), (3, 3))

    return Case(
        "snake of a sum",
        1,
        lambda _, tile: snake(x, alpha, lengths, 3, 3, SNAKE_EPS, bias=bias, branch=branch, kept=kept, tile=tile),
        plain,
        Floor(16 * x.numel(), 0),
        SNAKE_TILES,
    )
