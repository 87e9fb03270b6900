"""How a batch is cut for kernels that work on tiles of tokens, and the few shapes in which that comes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

TILE = 16
"""Most tokens of a tile."""
TILE_FIELDS = 4
_SHARES = (8, 4, 2, 1)
"""A batch of N tokens has N / share places for tiles."""
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


def tile_table(pieces: tuple[Ints, Ints, Ints], order: Ints, orders: Ints, out: Ints) -> None:
    """Fills `out` [4, T] as Tiles.table, from row, first token and count of each, the tokens' order [N] and the pages' orders [R, P]."""
    row, first, count = pieces
    # tokens of a row rise in order, and so do its pages
    reach = (orders[row] <= order[first + count - 1][:, None]).sum(1)
    for field, each in zip(out, (row, first, count, reach), strict=True):
        field[: len(row)], field[len(row) :] = each, 0
