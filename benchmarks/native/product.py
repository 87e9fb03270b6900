"""The four matrix products of a block."""

from __future__ import annotations

import math

import msgspec
from torch import Tensor

from torch_kit.decoder_weights import DecoderConfig

CACHE_BYTES = 300e6
"""What the copies of a matrix take at least: several times the L2."""
EPS = 1e-6


class Product(msgspec.Struct, frozen=True):
    """One of a block's four, with what its thin form does beside it."""

    name: str
    wide: int
    """Columns of what comes out."""
    deep: int
    normed: bool = False
    gated: bool = False

    @property
    def columns(self) -> int:
        """Of the matrix."""
        return self.wide * (2 if self.gated else 1)

    @property
    def plain(self) -> bool:
        return not (self.normed or self.gated)


def products_of(config: DecoderConfig) -> tuple[Product, ...]:
    queries = config.heads * config.head_dim
    keys = config.kv_heads * config.head_dim
    return (
        Product("qkv", queries + 2 * keys, config.hidden_size, normed=True),
        Product("out", config.hidden_size, queries),
        Product("gate_up", config.intermediate_size, config.hidden_size, normed=True, gated=True),
        Product("down", config.hidden_size, config.intermediate_size),
    )


def largest_error(made: Tensor, truth: Tensor) -> float:
    """In parts of the largest value; infinite where there is NaN."""
    error = (made.float() - truth).abs().max() / truth.abs().max()
    return math.inf if bool(error.isnan()) else float(error)
