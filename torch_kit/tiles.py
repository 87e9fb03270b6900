"""How a batch is cut for kernels that work on tiles of tokens, and the few shapes in which that comes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from torch_kit.pages import SINK

TILE = 16
"""Most tokens of a tile."""
TILE_FIELDS = 4
_SHARES = (8, 4, 2, 1)
"""A batch of N tokens has N / share places for tiles."""
_NEVER = np.iinfo(np.int32).max
Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Tiling:
    """What all batches of a decoder have in common, so that (tokens, tiles) names a shape whatever the pages hold."""

    pages: int
    """Most pages of a session, shared ones included: the stride of page tables."""
    rows: int
    """Most rows of a batch, without the one for padding."""
    tile: int = TILE
    """Most tokens of a tile."""

    def levels(self, tokens: int) -> tuple[int, ...]:
        """The numbers of tiles in which a batch padded to `tokens` may come, rising; the last one is `tokens`."""
        least = -(-tokens // self.tile)
        return tuple(sorted({level for share in _SHARES if (level := -(-tokens // share)) >= least}))

    def level(self, tokens: int, tiles: int) -> int:
        """The smallest level that holds `tiles`, which are at most `tokens`."""
        return next(level for level in self.levels(tokens) if level >= tiles)

    def height(self, tiles: int) -> int:
        """Rows of a batch with so many tiles: each tile may be a row of its own, and padding is a row."""
        return min(tiles, self.rows + 1)

    def longest(self, tokens: int, tiles: int) -> int:
        """Most tokens of a tile at this shape: one, where every token may have its own."""
        return 1 if tiles == tokens else self.tile


@dataclass(frozen=True, slots=True)
class Tiles:
    """T tiles, each of consecutive tokens of one row; together they hold all tokens of the batch, padding included. int32."""

    table: Tensor
    """[4, T] row, first token, count of tokens, and how many of the row's pages its last token sees; 0 all four where there is no tile."""
    orders: Tensor
    """[R, P] order of a page's first valid token."""
    longest: int
    """Most tokens of a tile; it follows from the shape."""

    @property
    def size(self) -> int:
        """T."""
        return int(self.table.shape[1])


def cut(lengths: Ints, rows: Ints, longest: int) -> Ints:
    """[3, tiles]: row, first token, count, of rows of `lengths` tokens that lie one behind the other; `rows` are their numbers."""
    pieces = -(-lengths // longest)
    within = np.arange(pieces.sum(), dtype=np.int32) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    first = np.repeat(np.cumsum(lengths) - lengths, pieces) + within * longest
    count = np.minimum(np.repeat(lengths, pieces) - within * longest, longest)
    return np.stack([np.repeat(rows, pieces), first, count]).astype(np.int32)


def page_orders(pages: Ints) -> Ints:
    """[R, P] order of a page's first valid token, beyond every order where there is no page. `pages` [3, R, P]: pages, starts, stops."""
    numbers, starts, stops = pages
    lengths = stops - starts
    return np.where(numbers == SINK, _NEVER, np.cumsum(lengths, axis=1) - lengths).astype(np.int32)


def tile_table(pieces: Ints, order: Ints, orders: Ints, size: int) -> Ints:
    """[4, size] of Tiles.table, from `cut`, the tokens' order [N] and the pages' orders [R, P]."""
    out = np.zeros((TILE_FIELDS, size), dtype=np.int32)
    row, first, count = pieces
    out[:3, : len(row)] = pieces
    # tokens of a row rise in order, and so do its pages
    out[3, : len(row)] = (orders[row] <= order[first + count - 1][:, None]).sum(1)
    return out
