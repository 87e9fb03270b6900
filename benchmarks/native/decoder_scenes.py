"""Decoders of the served sizes with random weights, and batches of sessions in the phases that occur."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import msgspec
import torch
from torch import Tensor

from benchmarks.native.floors import WIDENED_TOKENS, Floor
from benchmarks.native.random_pages import draw
from torch_kit.decoder_weights import DecoderConfig, matrix_names, narrow
from torch_kit.page_table import Appended, PageTable
from torch_kit.pages import PagePool, pages_for
from torch_kit.ragged import RaggedBatch
from torch_kit.tiles import Tiling

THINKER = DecoderConfig(4096, 36, 32, 8, 128, 12_288, 1e-6, 1_000_000.0, qk_norm=True)
TALKER = DecoderConfig(768, 20, 12, 12, 64, 3072, 1e-6, 10_000.0, qk_norm=False)
TINY_THINKER = DecoderConfig(48, 2, 4, 2, 16, 96, 1e-6, 1_000_000.0, qk_norm=True)
TINY_TALKER = DecoderConfig(48, 2, 2, 2, 32, 96, 1e-6, 10_000.0, qk_norm=False)
PREFIX = 200
"""Tokens of a session's prefix."""


class Scene(msgspec.Struct, frozen=True):
    """Sessions that hold `context` tokens each; `news`: the new tokens of each."""

    name: str
    news: tuple[int, ...]
    context: int

    @property
    def pages(self) -> int:
        """Of a session, at most."""
        return pages_for(self.context + max(self.news), regions=3)

    @property
    def seen(self) -> int:
        """Pairs of a token and a key that it sees."""
        return sum(count * self.context + count * (count + 1) // 2 for count in self.news)

    @property
    def held(self) -> int:
        """Keys that are read."""
        return sum(self.context + count for count in self.news)


def scenes(name: str, sessions: list[int], *, tiny: bool) -> Iterator[Scene]:
    """A step of every session; then, of the thinker, units that are taken in, beside steps."""
    if tiny:
        yield Scene("3 step", (1, 1, 1), 20)
        yield Scene("1 takes 18, 1 steps", (18, 1), 20)
        return
    contexts = (2048, 4096) if name == "thinker" else (500,)
    for count in sessions:
        for context in contexts:
            yield Scene(f"{count} step", (1,) * count, context)
    if name == "thinker":
        for count in sessions:
            yield Scene(f"{count} take 16", (16,) * count, 2048)
        yield Scene("64 step, 16 take 14", (1,) * 64 + (14,) * 16, 2048)
        yield Scene("4 take 80", (80,) * 4, 2048)
        yield Scene("1 takes 1024", (1024,), 200)


class Placed:
    """A scene's sessions in a pool: everything before the new tokens is there, with a gap in it."""

    def __init__(self, scene: Scene, pool: PagePool) -> None:
        self.tables = [PageTable(pool, scene.pages) for _ in scene.news]
        prefix = min(PREFIX, scene.context // 2)
        for table in self.tables:
            table.append_prefix(prefix)
            table.append(scene.context - prefix + 10)
            table.cut(prefix, prefix + 10)
        self.appended: list[Appended] = [table.append(count) for table, count in zip(self.tables, scene.news, strict=True)]
        self.batch = RaggedBatch.tiled(self.appended, Tiling(scene.pages, len(scene.news)))

    def release(self) -> None:
        for table in self.tables:
            table.release()


def pool_for(config: DecoderConfig, scene: Scene, dtype: torch.dtype, device: torch.device, *, layers: int) -> PagePool:
    """With random keys and values in it."""
    pages = scene.pages * len(scene.news) + 1
    pool = PagePool(layers=layers, kv_heads=config.kv_heads, head_dim=config.head_dim, pages=pages, dtype=dtype, device=device)
    draw(pool)
    return pool


def random_weights(config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """Under transformers' names, of a spread that keeps states of order 1."""
    width, head = config.hidden_size, config.head_dim
    norms = {"input_layernorm": width, "post_attention_layernorm": width}
    if config.qk_norm:
        norms |= {"self_attn.q_norm": head, "self_attn.k_norm": head}
    matrices = {
        "self_attn.q_proj": (config.heads * head, width),
        "self_attn.k_proj": (config.kv_heads * head, width),
        "self_attn.v_proj": (config.kv_heads * head, width),
        "self_attn.o_proj": (width, config.heads * head),
        "mlp.gate_proj": (config.intermediate_size, width),
        "mlp.up_proj": (config.intermediate_size, width),
        "mlp.down_proj": (width, config.intermediate_size),
    }
    made = {"norm.weight": torch.ones(width, dtype=dtype, device=device)}
    for index in range(config.layers):
        for name, size in norms.items():
            made[f"layers.{index}.{name}.weight"] = 1 + 0.1 * torch.randn(size, dtype=dtype, device=device)
        for name, shape in matrices.items():
            made[f"layers.{index}.{name}.weight"] = torch.randn(shape, dtype=dtype, device=device) / math.sqrt(shape[1])
    return made


def narrowed_weights(weights: Mapping[str, Tensor], config: DecoderConfig) -> dict[str, Tensor]:
    """The same with all matrices in e4m3."""
    names, made = matrix_names(config), dict[str, Tensor]()
    for name, tensor in weights.items():
        made |= narrow(name, tensor) if name in names else {name: tensor}
    return made


def floor_of(config: DecoderConfig, scene: Scene, element: int, *, weight: int | None = None) -> Floor:
    """Of a whole forward: every weight, key and value is read once. `element`, `weight`: bytes of one; a weight has as many by default.

    Products of more than WIDENED_TOKENS tokens with weights of one byte are those of fp8.
    """
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    weights = config.layers * config.hidden_size * (2 * queries + 2 * keys + 3 * config.intermediate_size)
    attention = attention_floor(config, scene, element)
    nbytes = weights * (weight or element) + config.layers * attention.nbytes
    kind = "fp8" if weight == 1 and sum(scene.news) > WIDENED_TOKENS else "bf16"
    return Floor(nbytes, 2 * weights * sum(scene.news) + config.layers * attention.flops, kind)


def attention_floor(config: DecoderConfig, scene: Scene, element: int) -> Floor:
    """Of one layer."""
    lines = sum(scene.news) * config.heads * config.head_dim
    cached = 2 * scene.held * config.kv_heads * config.head_dim
    return Floor((cached + 3 * lines) * element, 4 * config.heads * config.head_dim * scene.seen)
