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
from vocoder_svc.minicpmo45.kernels.attention import HeadNorms, attend
from vocoder_svc.minicpmo45.kernels.euler import euler
from vocoder_svc.minicpmo45.kernels.norm import norm
from vocoder_svc.minicpmo45.kernels.product import Activation, multiplied, product
from vocoder_svc.minicpmo45.kernels.tiles import CUBLAS, AttentionTile, ProductTile, RowTile
from vocoder_svc.minicpmo45.kernels.unfold import CONTEXT, Memory, joined_mish, joined_norm
from vocoder_svc.minicpmo45.retention import CHUNK_FRAMES, KEPT_FRAMES, RING_FRAMES, Newest

EPS = 1e-6
ROW_TILES = [RowTile(rows, warps) for rows, warps in ((1, 1), (1, 4), (2, 4), (4, 4), (8, 8))]
FEW = 1024
"""Tokens up to which other tiles are tried than above."""
FEW_TILES = [
    ProductTile(*sizes)
    for sizes in (
        (16, 32, 128, 4, 4),
        (16, 32, 128, 4, 4, 2),
        (32, 32, 128, 4, 3, 2),
        (32, 32, 128, 4, 3, 4),
        (32, 64, 64, 4, 5),
        (32, 64, 128, 4, 3),
        (32, 64, 128, 4, 3, 2),
        (32, 64, 128, 4, 3, 4),
        (64, 64, 64, 4, 4),
        (64, 64, 128, 4, 3, 4),
        (64, 64, 64, 4, 4, 8),
        (128, 32, 128, 4, 3, 4),
    )
]
"""Depths are those of two bytes a number."""
MANY_TILES = [
    ProductTile(*sizes)
    for sizes in (
        (64, 64, 64, 4, 4),
        (64, 128, 64, 4, 3),
        (64, 256, 64, 4, 3),
        (128, 64, 64, 4, 4),
        (128, 128, 64, 4, 3),
        (128, 128, 64, 8, 3),
        (128, 128, 64, 8, 4),
        (128, 256, 64, 8, 3),
        (128, 256, 64, 8, 4),
        (256, 128, 64, 8, 3),
        (256, 128, 64, 8, 4),
    )
]
FEW_ATTENTION = [
    AttentionTile(*sizes)
    for sizes in (
        (16, 64, 4, 3),
        (16, 128, 4, 1),
        (16, 128, 4, 2),
        (16, 128, 8, 1),
        (16, 256, 4, 1),
        (16, 256, 8, 1),
        (16, 512, 8, 1),
        (64, 128, 4, 2),
    )
]
MANY_ATTENTION = [
    AttentionTile(*sizes)
    for sizes in (
        (32, 64, 4, 2),
        (64, 32, 4, 2),
        (64, 32, 4, 4),
        (64, 64, 4, 2),
        (64, 64, 4, 3),
        (64, 64, 8, 2),
        (64, 128, 4, 2),
        (64, 128, 8, 2),
    )
]


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
        return {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(self.dtype, "tf32" if self.tf32 else "fp32")

    @property
    def units(self) -> str:
        """Those that make the products."""
        return "bf16" if self.dtype.itemsize == 2 else self.kind

    @property
    def cached(self) -> torch.dtype:
        """Of keys and values; TF32 flows keep them in bf16."""
        return torch.bfloat16 if self.tf32 else self.dtype

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
    yield _product(draw, "product, projection", width, heads, "none", split=True)
    yield _product(draw, "product, convolution", width, (1 + CONTEXT) * width, "none", split=True, frames=CHUNK_FRAMES)
    yield _product(draw, "product, MLP in and GELU", inner, width, "gelu")
    yield _product(draw, "product, MLP out", width, inner, "none", split=True)
    yield _attention(draw, prompt)
    yield _euler(draw)


def _norms(draw: Inputs) -> Iterator[Case]:
    width, tokens, row, dtype = draw.width, draw.tokens, draw.row, draw.dtype
    h, branch, kept = draw(tokens, width, dtype=torch.float32), draw(tokens, width), torch.empty(tokens, width, device=draw.device)
    gate, scale, shift = draw(3, width, dtype=torch.float32).unbind(0)
    # what the kernels write in place goes elsewhere here, or the sum would grow with every run
    zero = torch.zeros_like(gate)
    fresh = torch.full((draw.sessions,), CHUNK_FRAMES, device=draw.device)
    held = draw(draw.sessions, 2, 2 * width, 2)
    memory = Memory(held, torch.empty_like(held), fresh, 0)
    before = held[:, :, :width].reshape(-1, width, 2)

    def joined(y: Tensor) -> Tensor:
        sequences: Tensor = y.view(-1, CHUNK_FRAMES, width)
        return torch.cat((before.to(y).transpose(1, 2), sequences), 1)

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
        "residual, norm, context",
        1,
        lambda _, tile: joined_norm(h, branch, zero, scale, shift, EPS, dtype, memory, CHUNK_FRAMES, tile),
        lambda _, kind: joined(summed(zero, kind)),
        Floor(8 * tokens * width + 2 * row, 0),
        ROW_TILES,
    )
    yield Case(
        "norm, mish, context",
        1,
        lambda _, tile: joined_mish(branch, scale, shift, EPS, dtype, memory, CHUNK_FRAMES, tile),
        lambda _, kind: joined(functional.mish(normed(branch.to(kind), kind))),
        Floor(2 * row, 0),
        ROW_TILES,
    )


def _product(draw: Inputs, name: str, outputs: int, inputs: int, activation: Activation, *, split: bool = False, frames: int = 0) -> Case:
    """`frames`: of a causal convolution's sequence. `split`: parts of K may be made apart."""
    x = draw(draw.tokens // frames, frames + CONTEXT, inputs // (1 + CONTEXT)) if frames else draw(draw.tokens, inputs)
    bias, tf32, dtype, element = draw(outputs), draw.tf32, draw.dtype, draw.dtype.itemsize
    weights = [draw(outputs, inputs) / inputs**0.5 for _ in range(draw.copies)]

    def fused(copy: int, tile: ProductTile | None) -> Tensor:
        if tile is None:
            return product(x, weights[copy], bias, activation=activation, tf32=tf32, frames=frames, split=split)
        return multiplied(x, weights[copy], bias, activation=activation, tf32=tf32, dtype=dtype, frames=frames, tile=tile)

    def plain(copy: int, kind: torch.dtype) -> Tensor:
        given = x.unfold(1, 1 + CONTEXT, 1).transpose(2, 3).reshape(draw.tokens, -1) if frames else x
        made = functional.linear(given.to(kind), weights[copy].to(kind), bias.to(kind))
        return functional.gelu(made, approximate="tanh") if activation == "gelu" else made

    few = draw.tokens <= FEW
    tiles = [tile for tile in (FEW_TILES if few else MANY_TILES) if split or tile.parts == 1]
    tiles = [msgspec.structs.replace(tile, depth=tile.depth * 2 // element) for tile in tiles]
    own = [CUBLAS] if not frames and not tf32 else []
    read = element * (outputs * inputs + draw.tokens * (x.shape[-1] + outputs))
    return Case(name, draw.copies, fused, plain, Floor(read, 2 * draw.tokens * outputs * inputs, draw.units), [*tiles, *own])


def _attention(draw: Inputs, prompt: int) -> Case:
    heads, dim, sessions = draw.config.dit_heads, draw.config.dit_head_dim, draw.sessions
    frames = prompt + sessions * RING_FRAMES
    rows = [[0, prompt, prompt + n * RING_FRAMES, 400 + 50 * (n % 3), CHUNK_FRAMES] for n in range(sessions)]
    keys: Keys = Newest.attention(torch.tensor(rows, device=draw.device), prompt, CHUNK_FRAMES // 2).dit
    spans = keys.spans
    assert spans is not None
    arenas = [draw(2, 2, heads, frames, dim, dtype=draw.cached) for _ in range(draw.copies)]
    qkv, norms = draw(draw.tokens, 3 * heads * dim), HeadNorms(draw(4, dim), 1e-5)

    def plain(copy: int, kind: torch.dtype) -> Tensor:
        arena = arenas[copy]
        split = qkv.to(kind).view(sessions, 2, CHUNK_FRAMES, 3, heads, dim).permute(3, 0, 1, 4, 2, 5)
        scales = norms.parameters.to(kind)
        query = functional.layer_norm(split[0], (dim,), scales[0], scales[1], norms.eps)
        key = functional.layer_norm(split[1], (dim,), scales[2], scales[3], norms.eps)
        store(arena, keys, key, split[2])
        return attend_plain(query, *load(arena, keys), keys).transpose(2, 3).reshape(draw.tokens, -1)

    cached = draw.cached.itemsize * 4 * heads * dim * (prompt + sessions * RING_FRAMES)
    seen = prompt + KEPT_FRAMES + CHUNK_FRAMES
    return Case(
        "attention",
        draw.copies,
        lambda copy, tile: attend(qkv, arenas[copy], spans, CHUNK_FRAMES, norms=norms, tf32=draw.tf32, tile=tile),
        plain,
        Floor(cached + 4 * draw.row, 4 * draw.tokens * heads * dim * seen, draw.units),
        FEW_ATTENTION if sessions < 8 else MANY_ATTENTION,
    )


def _euler(draw: Inputs) -> Case:
    mels, sessions = draw.config.mels, draw.sessions
    x, speed = draw(sessions, CHUNK_FRAMES, mels, dtype=torch.float32), draw(sessions, 2, CHUNK_FRAMES, mels, dtype=torch.float32)

    def plain(_: int, kind: torch.dtype) -> Tensor:
        guided, free = speed.to(kind).unbind(1)
        return x.to(kind) + 0.2 * (1.7 * guided - 0.7 * free)

    return Case("Euler step", 1, lambda _, tile: euler(x, speed, 0.2, 0.7), plain, Floor(16 * x.numel(), 0))
