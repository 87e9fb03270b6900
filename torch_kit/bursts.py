"""Steps of one token a row that are packed before the first of them runs: what each draws is fed to the next on the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from torch_kit.packing import PAGE_FIELDS, TOKEN_FIELDS, Ints, page_fields
from torch_kit.page_table import NEVER, Appended
from torch_kit.pages import SINK
from torch_kit.ragged import RaggedBatch, StaleAppend

Bools = NDArray[np.bool_]


def pack_steps(appended: Sequence[Appended], like: RaggedBatch, out: Ints | None = None) -> Ints:
    """int32 [steps, length of `like.packed`]: a line is what `like.over` takes, and the steps are as many as the longest row has tokens.

    Step j feeds token j of every row, as a batch of `RaggedBatch.steps` or `tiled` would that were made when no later token had its place
    yet: what lies at later places is not read. A row is padding in the steps behind its tokens. `like`: `RaggedBatch.blank` or
    `blank_tiled`, with as many tiles as tokens. `out`: where to. Raises ValueError (no row, `like` too small) and StaleAppend.
    """
    _check(appended, like)
    height, width = like.pages.shape
    counts = np.array([row.count for row in appended])
    steps = int(counts.max())
    fed = np.arange(steps)[:, None] < counts
    tokens = _tokens(appended, fed, like.size, height)
    order = np.full((steps, height), -1, dtype=np.int32)
    order[:, : len(appended)] = tokens[:, 4, : len(appended)]
    final = page_fields(appended, height, width)
    pages = _pages(final[:PAGE_FIELDS], order)
    prefix = np.zeros((steps, height), dtype=np.int32)
    prefix[:, : len(appended)] = [row.table.prefix_pages for row in appended]
    parts = [tokens, pages, prefix]
    if like.tiles is not None:
        present = pages[:, 0] != SINK
        orders = np.where(present, final[PAGE_FIELDS], NEVER)
        parts += [orders, _tiles(tokens, present.sum(2)), _sampled(len(appended), steps, height)]
    joined = [part.reshape(steps, -1) for part in parts]
    if out is None:
        return np.concatenate(joined, axis=1, dtype=np.int32, casting="unsafe")
    return np.concatenate(joined, axis=1, out=out, casting="unsafe")


def _check(appended: Sequence[Appended], like: RaggedBatch) -> None:
    if not appended:
        raise ValueError("appended: no row")
    if any(row.version != row.table.version for row in appended):
        raise StaleAppend("appended: the table has changed since")
    height, width = like.pages.shape
    padding = like.size > len(appended)
    if like.size < len(appended) or height < len(appended) + padding or width < max(row.table.page_count for row in appended):
        raise ValueError("like: smaller than the batch")
    if like.tiles is not None and like.tiles.size != like.size:
        raise ValueError("like: its tiles are not one a token")


def _tokens(appended: Sequence[Appended], fed: Bools, size: int, height: int) -> Ints:
    """[steps, 6, N], see `packing.token_fields`."""
    steps, count = fed.shape
    out = np.zeros((steps, TOKEN_FIELDS, size), dtype=np.int32)
    out[:, 2, :count] = np.arange(count)
    out[:, 2, count:] = height - 1
    out[:, 4] = -1
    firsts = np.array([(row.position, row.position - row.gap, row.order) for row in appended], dtype=np.int32).T
    position, prefix_position, order = firsts[:, None] + np.arange(steps, dtype=np.int32)[:, None]
    out[:, 0, :count] = np.where(fed, position, 0)
    out[:, 1, :count] = np.where(fed, prefix_position, 0)
    out[:, 4, :count] = np.where(fed, order, -1)
    # both sides go row by row
    out[:, 5, :count].T[fed.T] = np.concatenate([row.slots for row in appended])
    return out


def _pages(final: Ints, order: Ints) -> Ints:
    """[steps, 3, R, P]: the pages when the token of each step was the last one. `final` [3, R, P]: behind all; `order` [steps, R]."""
    numbers, starts, stops = final
    lengths = stops - starts
    seen = np.clip(order[:, :, None] + 1 - (np.cumsum(lengths, axis=1) - lengths), 0, lengths)
    return np.stack([np.where(seen, each, 0) for each in (numbers, starts, starts + seen)], axis=1)


def _tiles(tokens: Ints, present: NDArray[np.int_]) -> Ints:
    """[steps, 4, N]: Tiles.table with a tile for each token. `present` [steps, R]: pages of each row."""
    steps, _, size = tokens.shape
    out = np.ones((steps, 4, size), dtype=np.int32)
    out[:, 0] = tokens[:, 2]
    out[:, 1] = np.arange(size)
    out[:, 3] = np.take_along_axis(present, tokens[:, 2].astype(np.int64), axis=1)
    return out


def _sampled(count: int, steps: int, height: int) -> Ints:
    out = np.zeros((steps, height), dtype=np.int32)
    out[:, :count] = np.arange(count)
    return out
