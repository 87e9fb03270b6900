"""A ragged batch on the host: int32 arrays of its tokens and pages, joined into one upload."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_kit.page_table import Appended

TOKEN_FIELDS = 6
PAGE_FIELDS = 3
Ints = NDArray[np.int32]


def token_fields(appended: Sequence[Appended], counts: Ints, size: int, height: int) -> Ints:
    """[6, N]: positions, prefix positions, rows, local, order, slots; `counts` [rows] tokens of each."""
    out = np.zeros((TOKEN_FIELDS, size), dtype=np.int32)
    count = int(counts.sum())
    out[2, count:] = height - 1
    out[4, count:] = -1
    if not count:
        return out
    first = np.repeat(np.cumsum(counts) - counts, counts)
    local = np.arange(count, dtype=np.int32) - first
    firsts = np.array([(row.position, row.position - row.gap, row.order) for row in appended], dtype=np.int32).T
    each = np.repeat(firsts, counts, axis=1) + local
    rows = np.repeat(np.arange(len(appended), dtype=np.int32), counts)
    slots = np.concatenate([row.slots for row in appended])
    out[:, :count] = np.stack([each[0], each[1], rows, local, each[2], slots])
    return out


def page_fields(appended: Sequence[Appended], height: int, width: int) -> Ints:
    """[3, R, P]: pages, starts, stops."""
    out = np.zeros((PAGE_FIELDS, height, width), dtype=np.int32)
    tables = [row.table for row in appended]
    counts = np.array([table.page_count for table in tables], dtype=np.int64)
    listed = np.arange(width) < counts[:, None]
    lists = ([table.pages for table in tables], [table.starts for table in tables], [table.stops for table in tables])
    for field, each in zip(out, lists, strict=True):
        field[: len(tables)][listed] = np.fromiter(chain.from_iterable(each), np.int32, int(counts.sum()))
    return out


def prefix_pages(appended: Sequence[Appended], height: int) -> Ints:
    """[R]"""
    return np.array([row.table.prefix_pages for row in appended] + [0] * (height - len(appended)), dtype=np.int32)


def sampled_tokens(counts: Ints, sample: Sequence[bool] | None) -> Ints:
    """The last tokens of the rows that sample; None: all of them."""
    last = np.cumsum(counts, dtype=np.int32) - 1
    return last if sample is None else last[np.asarray(sample, dtype=bool)]


def joined(parts: Sequence[Ints]) -> Tensor:
    """One int32 list of all."""
    return torch.from_numpy(np.concatenate([part.ravel() for part in parts], dtype=np.int32, casting="unsafe"))
