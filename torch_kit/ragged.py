"""One forward for rows in different phases: a flat list of tokens, and what each row may see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_kit.page_table import Appended

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048)
"""Token counts that a forward is made for."""
WIDTHS = (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
"""Page counts that a batch of single tokens is made for."""
_TOKEN_FIELDS = 6
_PAGE_FIELDS = 3


def bucket(count: int) -> int:
    """The smallest bucket that holds `count`; above the largest, `count` itself."""
    return next((size for size in BUCKETS if size >= count), count)


def width(pages: int) -> int:
    """The smallest width that holds `pages`; above the largest, the next multiple of 64."""
    return next((size for size in WIDTHS if size >= pages), -(-pages // 64) * 64)


class StaleAppend(ValueError):
    """A row's table changed after its append: what it may see is not known any more."""


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
        if not appended:
            raise ValueError("appended: no row")
        for row in appended:
            if row.version != row.table.version:
                raise StaleAppend("appended: the table has changed since")
        counts = np.array([row.count for row in appended], dtype=np.int32)
        count = int(counts.sum())
        size = tokens or (count if exact else bucket(count))
        height = rows or _height(len(appended), padded=size > count, exact=exact)
        width = pages or max(row.table.page_count for row in appended)
        if size < count or height < len(appended) + (size > count) or width < max(row.table.page_count for row in appended):
            raise ValueError("tokens, rows or pages: smaller than the batch")
        chosen = np.ones(len(appended), dtype=bool) if sample is None else np.asarray(sample, dtype=bool)
        sampled = (np.cumsum(counts) - 1)[chosen]
        parts = [_tokens(appended, counts, size, height).ravel(), _pages(appended, height, width).ravel()]
        parts.append(np.array([row.table.prefix_pages for row in appended] + [0] * (height - len(appended))))
        packed = np.concatenate([*parts, sampled], dtype=np.int32, casting="unsafe")
        device = appended[0].table.pool.device
        gapped = any(row.gap != 0 and row.table.prefix_pages for row in appended)
        return _views(torch.from_numpy(packed).to(device), size, height, width, (count, int(counts.max()), gapped))

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
        packed = torch.zeros(_TOKEN_FIELDS * rows + _PAGE_FIELDS * rows * pages + rows, dtype=torch.int32, device=device)
        return _views(packed, rows, rows, pages, (rows, 1, gapped))

    def over(self, packed: Tensor) -> RaggedBatch:
        """The batch of these sizes whose numbers lie in `packed`; for one padded by `steps`, `count` is that of all its tokens."""
        height, width = self.pages.shape
        return _views(packed, self.size, height, width, (self.size, self.longest, self.gapped))


def _height(rows: int, *, padded: bool, exact: bool) -> int:
    """Rows with padding: padding tokens need a row of their own."""
    wanted = rows + padded
    return wanted if exact else bucket(wanted)


def _tokens(appended: Sequence[Appended], counts: NDArray[np.int32], size: int, height: int) -> NDArray[np.int32]:
    """[6, N]: positions, prefix positions, rows, local, order, slots."""
    out = np.zeros((_TOKEN_FIELDS, size), dtype=np.int32)
    count = int(counts.sum())
    first = np.repeat(np.cumsum(counts) - counts, counts)
    local = np.arange(count, dtype=np.int32) - first
    firsts = np.array([(row.position, row.position - row.gap, row.order) for row in appended], dtype=np.int32).T
    each = np.repeat(firsts, counts, axis=1) + local
    rows = np.repeat(np.arange(len(appended), dtype=np.int32), counts)
    slots = np.concatenate([row.slots for row in appended])
    out[:, :count] = np.stack([each[0], each[1], rows, local, each[2], slots])
    out[2, count:] = height - 1
    out[4, count:] = -1
    return out


def _pages(appended: Sequence[Appended], height: int, width: int) -> NDArray[np.int32]:
    """[3, R, P]: pages, starts, stops."""
    out = np.zeros((_PAGE_FIELDS, height, width), dtype=np.int32)
    for index, row in enumerate(appended):
        table = row.table
        out[:, index, : table.page_count] = (table.pages, table.starts, table.stops)
    return out


def _views(packed: Tensor, size: int, height: int, width: int, facts: tuple[int, int, bool]) -> RaggedBatch:
    at = _TOKEN_FIELDS * size
    end = at + _PAGE_FIELDS * height * width
    positions, prefix_positions, rows, local, order, slots = packed[:at].view(_TOKEN_FIELDS, size).unbind(0)
    pages, starts, stops = packed[at:end].view(_PAGE_FIELDS, height, width).unbind(0)
    count, longest, gapped = facts
    return RaggedBatch(
        packed=packed,
        positions=positions,
        prefix_positions=prefix_positions,
        rows=rows,
        local=local,
        order=order,
        slots=slots,
        pages=pages,
        starts=starts,
        stops=stops,
        prefix_pages=packed[end : end + height],
        sampled=packed[end + height :],
        count=count,
        longest=longest,
        gapped=gapped,
    )
