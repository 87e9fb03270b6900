"""A ragged batch on the host: int32 arrays of its tokens and pages, joined into one upload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_kit.page_table import NEVER, Appended
from torch_kit.tiles import TILE_FIELDS, cut, tile_table

TOKEN_FIELDS = 6
PAGE_FIELDS = 3
Ints = NDArray[np.int32]
Room = Callable[[int], Tensor]
"""Memory of the host, int32 [so many], for an upload."""


class StaleAppend(ValueError):
    """A row's table changed after its append: what it may see is not known any more."""


class Lines(NamedTuple):
    """What rows are on the host, int32 [R] each."""

    counts: Ints
    positions: Ints
    prefix_positions: Ints
    orders: Ints
    places: Ints
    prefix_pages: Ints
    pages: Ints

    @classmethod
    def of(cls, appended: Sequence[Appended]) -> Lines:
        """Raises StaleAppend."""
        facts = chain.from_iterable(
            (
                row.count,
                row.position,
                row.position - row.gap,
                row.order,
                row.place,
                (table := row.table).prefix_pages,
                table.page_count,
                row.version - table.version,
            )
            for row in appended
        )
        *found, stale = np.fromiter(facts, np.int32, 8 * len(appended)).reshape(-1, 8).T
        if stale.any():
            raise StaleAppend("appended: the table has changed since")
        return cls(*found)

    @property
    def gapped(self) -> bool:
        """Some row's gap is not 0."""
        return bool(((self.positions != self.prefix_positions) & (self.prefix_pages > 0)).any())


class TiledSizes(NamedTuple):
    """Of a batch for kernels."""

    tokens: int
    tiles: int
    rows: int
    pages: int
    longest: int
    """Most tokens of a tile."""

    @property
    def parts(self) -> tuple[int, ...]:
        """Lengths of the parts of its upload, see `pack_tiled`."""
        table = self.rows * self.pages
        return TOKEN_FIELDS * self.tokens, PAGE_FIELDS * table, self.rows, table, TILE_FIELDS * self.tiles, self.rows


def pack_tiled(
    appended: Sequence[Appended], lines: Lines, sizes: TiledSizes, sample: Sequence[bool] | None = None, room: Room | None = None
) -> Tensor:
    """int32: fields of tokens, fields of pages, prefix pages, orders of pages, tiles, sampled tokens. `room`: where to; None: anywhere."""
    ends = list(accumulate(sizes.parts))
    packed = torch.empty(ends[-1], dtype=torch.int32) if room is None else room(ends[-1])
    whole = packed.numpy()
    tokens, pages, prefix, orders, tiles, sampled = (whole[end - length : end] for end, length in zip(ends, sizes.parts, strict=True))
    fields, listed = tokens.reshape(TOKEN_FIELDS, -1), orders.reshape(sizes.rows, -1)
    token_fields(appended, lines, fields, sizes.rows)
    _list_pages(appended, pages.reshape(PAGE_FIELDS, sizes.rows, -1), listed)
    prefix[: len(appended)], prefix[len(appended) :] = lines.prefix_pages, 0
    tile_table(_pieces(lines.counts, fields[2], sizes), fields[4], listed, tiles.reshape(TILE_FIELDS, -1))
    chosen = sampled_tokens(lines.counts, sample)
    sampled[: len(chosen)], sampled[len(chosen) :] = chosen, 0
    return packed


def _pieces(counts: Ints, rows: Ints, sizes: TiledSizes) -> tuple[Ints, Ints, Ints]:
    """Row, first token and count of each tile. `rows` [N] of the tokens."""
    if sizes.longest == 1:
        return rows, np.arange(sizes.tokens, dtype=np.int32), np.ones(sizes.tokens, dtype=np.int32)
    # the tokens of padding are in tiles, too, so that every token's output is written
    lengths = np.append(counts, sizes.tokens - int(counts.sum())).astype(np.int32)
    row, first, count = cut(lengths, np.append(np.arange(len(counts)), sizes.rows - 1).astype(np.int32), sizes.longest)
    return row, first, count


def token_fields(appended: Sequence[Appended], lines: Lines, out: Ints, height: int) -> Ints:
    """Fills `out` [6, N]: positions, prefix positions, rows, local, order, slots."""
    counts = lines.counts
    count = int(counts.sum())
    out[:, count:] = 0
    out[2, count:] = height - 1
    out[4, count:] = -1
    filled = out[:, :count]
    if count == len(counts):
        filled[0], filled[1], filled[4], filled[5] = lines.positions, lines.prefix_positions, lines.orders, lines.places
        filled[2], filled[3] = np.arange(count, dtype=np.int32), 0
        return out
    starts = np.cumsum(counts) - counts
    local = np.arange(count, dtype=np.int32) - np.repeat(starts, counts)
    firsts = np.stack([lines.positions, lines.prefix_positions, lines.orders, lines.places])
    filled[[0, 1, 4, 5]] = np.repeat(firsts, counts, axis=1) + local
    filled[2], filled[3] = np.repeat(np.arange(len(counts), dtype=np.int32), counts), local
    for index, row in enumerate(appended):
        if row.scattered is not None:
            filled[5, starts[index] : starts[index] + row.count] = row.scattered
    return out


def page_fields(appended: Sequence[Appended], height: int, width: int) -> Ints:
    """[4, R, P]: pages, starts, stops, and the order of each page's first valid token, see `PageTable.listed`."""
    out = np.empty((PAGE_FIELDS + 1, height, width), dtype=np.int32)
    _list_pages(appended, out[:PAGE_FIELDS], out[PAGE_FIELDS])
    return out


def _list_pages(appended: Sequence[Appended], pages: Ints, orders: Ints) -> None:
    """Fills [3, R, P] and [R, P], padding included."""
    count, width = len(appended), orders.shape[1]
    pages[:, count:] = 0
    orders[count:] = NEVER
    if count:
        listed = np.concatenate([row.table.listed(width) for row in appended]).reshape(count, PAGE_FIELDS + 1, width)
        pages[:, :count] = listed[:, :PAGE_FIELDS].transpose(1, 0, 2)
        orders[:count] = listed[:, PAGE_FIELDS]


def prefix_pages(lines: Lines, height: int) -> Ints:
    """[R]"""
    return np.append(lines.prefix_pages, np.zeros(height - len(lines.counts), dtype=np.int32))


def sampled_tokens(counts: Ints, sample: Sequence[bool] | None) -> Ints:
    """The last tokens of the rows that sample; None: all of them."""
    last = np.cumsum(counts, dtype=np.int32) - 1
    return last if sample is None else last[np.asarray(sample, dtype=bool)]


def joined(parts: Sequence[Ints]) -> Tensor:
    """One int32 list of all."""
    return torch.from_numpy(np.concatenate([part.ravel() for part in parts], dtype=np.int32, casting="unsafe"))
