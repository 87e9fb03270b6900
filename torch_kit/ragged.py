"""One forward for rows in different phases: a flat list of tokens, and what each row may see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torch_kit.packing import (
    PAGE_FIELDS,
    TOKEN_FIELDS,
    Lines,
    Room,
    StaleAppend,
    TiledSizes,
    joined,
    pack_tiled,
    page_fields,
    prefix_pages,
    sampled_tokens,
    token_fields,
)
from torch_kit.page_table import Appended
from torch_kit.tiles import TILE_FIELDS, Tiles, Tiling

__all__ = ["BUCKETS", "WIDTHS", "RaggedBatch", "StaleAppend", "bucket", "pack", "width"]

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1280, 1536, 2048, 2304)
"""Token counts that a forward is made for."""
WIDTHS = (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
"""Page counts that a batch of single tokens is made for."""


def bucket(count: int) -> int:
    """The smallest bucket that holds `count`; above the largest, `count` itself."""
    return next((size for size in BUCKETS if size >= count), count)


def width(pages: int) -> int:
    """The smallest width that holds `pages`; above the largest, the next multiple of 64."""
    return next((size for size in WIDTHS if size >= pages), -(-pages // 64) * 64)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Of the parts of an upload."""

    tokens: int
    rows: int
    pages: int
    tiles: int = 0
    longest_tile: int = 0


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """N tokens of R rows, padding included. All tensors are int32 views of one upload, `packed`.

    A token sees the valid tokens of its row's pages whose order is not above its own; order counts valid tokens from the left. Padding
    tokens have order -1 (they see nothing), write to the sink page and belong to a padding row, which has no pages.
    """

    packed: Tensor
    positions: Tensor
    """[N] absolute positions: rotation of keys, and of queries that meet window pages."""
    prefix_positions: Tensor
    """[N] position - gap: rotation of queries that meet prefix pages."""
    rows: Tensor
    """[N] the token's row."""
    local: Tensor
    """[N] its index within the row's new tokens."""
    order: Tensor
    """[N] see above."""
    slots: Tensor
    """[N] where its key and value go: page * page size + offset."""
    pages: Tensor
    """[R, P] page numbers; padded with the sink."""
    starts: Tensor
    """[R, P] offset of the first valid token of a page."""
    stops: Tensor
    """[R, P] offset after its last; equal to starts in padding."""
    prefix_pages: Tensor
    """[R] the first so many pages are prefix."""
    sampled: Tensor
    """[S] the tokens after which a code or word is drawn: the last ones of the rows that sample, in the order of rows."""
    count: int
    """Tokens without padding."""
    longest: int
    """Most tokens of a row."""
    gapped: bool
    """Some row's gap is not 0."""
    tiles: Tiles | None
    """Of a batch that was made by `tiled` or `blank_tiled`."""

    @property
    def size(self) -> int:
        """N."""
        return int(self.positions.shape[0])

    @classmethod
    def of(
        cls,
        appended: Sequence[Appended],
        sample: Sequence[bool] | None = None,
        *,
        tokens: int = 0,
        rows: int = 0,
        pages: int = 0,
        exact: bool = False,
    ) -> RaggedBatch:
        """A batch of appended tokens, padded to buckets or to the given sizes, not at all if `exact`.

        `sample`: which rows are drawn from; None: all of them. Raises ValueError (no row, sizes too small) and StaleAppend.
        """
        lines = _lines(appended)
        count = int(lines.counts.sum())
        size = tokens or (count if exact else bucket(count))
        height = rows or _height(len(appended), padded=size > count, exact=exact)
        most = int(lines.pages.max())
        width = pages or most
        if size < count or height < len(appended) + (size > count) or width < most:
            raise ValueError("tokens, rows or pages: smaller than the batch")
        packed = joined(
            [
                token_fields(appended, lines, np.empty((TOKEN_FIELDS, size), dtype=np.int32), height),
                page_fields(appended, height, width)[:PAGE_FIELDS],
                prefix_pages(lines, height),
                sampled_tokens(lines.counts, sample),
            ]
        )
        device = appended[0].table.pool.device
        return _views(packed.to(device), _Sizes(size, height, width), (count, int(lines.counts.max()), lines.gapped))

    @classmethod
    def steps(cls, appended: Sequence[Appended]) -> RaggedBatch:
        """A batch of one token a row, of which all are sampled in order, padded so that few shapes occur: as many rows as tokens.

        `sampled` is empty: the list would have another length for every number of rows. Raises as `of`, and ValueError for a longer row.
        """
        if any(row.count != 1 for row in appended):
            raise ValueError("appended: more than one token of a row")
        size = bucket(len(appended))
        pages = width(max((row.table.page_count for row in appended), default=0))
        return cls.of(appended, [False] * len(appended), tokens=size, rows=size, pages=pages)

    @classmethod
    def blank(cls, rows: int, pages: int, *, gapped: bool, device: torch.device) -> RaggedBatch:
        """A batch as `steps` pads it, of nothing but padding: it sees nothing and writes to the sink."""
        packed = torch.zeros(TOKEN_FIELDS * rows + PAGE_FIELDS * rows * pages + rows, dtype=torch.int32, device=device)
        return _views(packed, _Sizes(rows, rows, pages), (rows, 1, gapped))

    @classmethod
    def tiled(
        cls, appended: Sequence[Appended], tiling: Tiling, sample: Sequence[bool] | None = None, device: torch.device | None = None
    ) -> RaggedBatch:
        """A batch for kernels: its tokens padded to a bucket and cut into tiles, whose number is padded to a level of `tiling`.

        All sizes of it, that of `packed` too, follow from its `shape` and `tiling`: a graph of a forward that is keyed by `shape` serves
        every batch of that shape, over any page tables. `sampled` has as many entries as there are rows; those behind the rows that sample
        are 0. `device`: None is that of the pages. Raises as `of`, and ValueError where `tiling` is smaller than the batch.
        """
        lines = _lines(appended)
        packed, sizes = _pack(appended, lines, tiling, sample)
        facts = (int(lines.counts.sum()), int(lines.counts.max()), lines.gapped)
        return _views(packed.to(device or appended[0].table.pool.device), _of_tiled(sizes), facts)

    @classmethod
    def blank_tiled(cls, tokens: int, tiles: int, tiling: Tiling, device: torch.device) -> RaggedBatch:
        """A batch of this shape of nothing but padding: it sees nothing and writes to the sink. ValueError: none comes in this shape."""
        if bucket(tokens) != tokens or tiles not in tiling.levels(tokens):
            raise ValueError(f"tokens, tiles: no batch has {tokens} and {tiles}")
        sizes = _tiled_sizes(tokens, tiles, tiling)
        return _views(pack_tiled((), Lines.of(()), sizes).to(device), _of_tiled(sizes), (tokens, 1, False))

    @property
    def shape(self) -> tuple[int, int]:
        """Tokens and tiles, padding included: the key of a graph, see `tiled`."""
        return self.size, self.tiles.size if self.tiles is not None else 0

    def over(self, packed: Tensor) -> RaggedBatch:
        """The batch of these sizes whose numbers lie in `packed`; if this one was padded, `count` is that of all its tokens."""
        height, width = self.pages.shape
        tiles, longest_tile = (self.tiles.size, self.tiles.longest) if self.tiles is not None else (0, 0)
        return _views(packed, _Sizes(self.size, height, width, tiles, longest_tile), (self.size, self.longest, self.gapped))


def _height(rows: int, *, padded: bool, exact: bool) -> int:
    """Rows with padding: padding tokens need a row of their own."""
    wanted = rows + padded
    return wanted if exact else bucket(wanted)


def pack(
    appended: Sequence[Appended], tiling: Tiling, room: Room | None = None, level: Callable[[int, int], int] | None = None
) -> tuple[Tensor, tuple[int, int]]:
    """What `RaggedBatch.tiled` uploads, and the batch's `shape`: `blank_tiled(*shape, ...).over` takes it. `room`: where to.

    `level`: told of tokens and tiles, it chooses among the `levels` that hold so many tiles; None: the smallest. Raises as `tiled`.
    """
    packed, sizes = _pack(appended, _lines(appended), tiling, None, room, level)
    return packed, (sizes.tokens, sizes.tiles)


def _lines(appended: Sequence[Appended]) -> Lines:
    """Raises ValueError and StaleAppend."""
    if not appended:
        raise ValueError("appended: no row")
    return Lines.of(appended)


def _pack(
    appended: Sequence[Appended],
    lines: Lines,
    tiling: Tiling,
    sample: Sequence[bool] | None,
    room: Room | None = None,
    level: Callable[[int, int], int] | None = None,
) -> tuple[Tensor, TiledSizes]:
    if len(appended) > tiling.rows:
        raise ValueError(f"rows: {len(appended)}, not more than {tiling.rows}")
    pages = int(lines.pages.max())
    if pages > tiling.pages:
        raise ValueError(f"pages: {pages} of a row, not more than {tiling.pages}")
    count = int(lines.counts.sum())
    size = bucket(count)
    wanted = int((-(-lines.counts // tiling.tile)).sum()) + -(-(size - count) // tiling.tile)
    tiles = tiling.level(size, wanted)
    sizes = _tiled_sizes(size, tiles if level is None else level(size, tiles), tiling)
    return pack_tiled(appended, lines, sizes, sample, room), sizes


def _tiled_sizes(tokens: int, tiles: int, tiling: Tiling) -> TiledSizes:
    return TiledSizes(tokens, tiles, tiling.height(tiles), tiling.pages, tiling.longest(tokens, tiles))


def _of_tiled(sizes: TiledSizes) -> _Sizes:
    return _Sizes(sizes.tokens, sizes.rows, sizes.pages, sizes.tiles, sizes.longest)


def _views(packed: Tensor, sizes: _Sizes, facts: tuple[int, int, bool]) -> RaggedBatch:
    """`facts`: count, longest and gapped of the batch."""
    table = sizes.rows * sizes.pages
    lengths = [TOKEN_FIELDS * sizes.tokens, PAGE_FIELDS * table, sizes.rows]
    if sizes.tiles:
        lengths += [table, TILE_FIELDS * sizes.tiles]
    tokens, pages, prefix, *tiled, sampled = packed.split_with_sizes([*lengths, len(packed) - sum(lengths)])
    positions, prefix_positions, rows, local, order, slots = tokens.view(TOKEN_FIELDS, -1).unbind(0)
    numbers, starts, stops = pages.view(PAGE_FIELDS, sizes.rows, sizes.pages).unbind(0)
    tiles = None
    if tiled:
        tiles = Tiles(tiled[1].view(TILE_FIELDS, sizes.tiles), tiled[0].view(sizes.rows, sizes.pages), sizes.longest_tile)
    count, longest, gapped = facts
    return RaggedBatch(
        packed=packed,
        positions=positions,
        prefix_positions=prefix_positions,
        rows=rows,
        local=local,
        order=order,
        slots=slots,
        pages=numbers,
        starts=starts,
        stops=stops,
        prefix_pages=prefix,
        sampled=sampled,
        count=count,
        longest=longest,
        gapped=gapped,
        tiles=tiles,
    )
