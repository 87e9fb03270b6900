"""How a batch is cut, and that its sizes follow from its shape alone."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from torch_kit.page_table import PageTable
from torch_kit.pages import PagePool
from torch_kit.ragged import BUCKETS, RaggedBatch, StaleAppend, pack
from torch_kit.tiles import Tiling

CPU = torch.device("cpu")
TILING = Tiling(pages=12, rows=20)


def pool() -> PagePool:
    return PagePool(layers=1, kv_heads=1, head_dim=2, pages=400, page=4)


def batch_of(counts: list[int], histories: list[int], tiling: Tiling = TILING) -> RaggedBatch:
    """Rows with these many new tokens behind a prefix of 3 and so much window, of which the oldest third is cut."""
    held = pool()
    appended = []
    for count, history in zip(counts, histories, strict=True):
        table = PageTable(held, 12)
        table.append_prefix(3)
        if history:
            table.append(history)
            table.cut(3, 3 + history // 3)
        appended.append(table.append(count))
    return RaggedBatch.tiled(appended, tiling)


@pytest.mark.parametrize("seed", range(6))
def test_every_token_is_in_one_tile_of_its_row_that_knows_how_far_it_sees(seed: int) -> None:
    draws = np.random.default_rng(seed)
    rows = int(draws.integers(1, 14))
    counts = [int(each) for each in draws.choice([1, 1, 2, 9, 21], rows)]
    batch = batch_of(counts, [int(each) for each in draws.integers(0, 18, rows)])
    assert batch.tiles is not None
    seen = []
    for row, first, count, reach in batch.tiles.table.T.tolist():
        tokens = list(range(first, first + count))
        seen += tokens
        assert count <= batch.tiles.longest
        if count:
            assert batch.rows[tokens].tolist() == [row] * count
            starts, stops = batch.starts[row], batch.stops[row]
            orders = torch.cat([torch.tensor([0], dtype=torch.int32), (stops - starts).cumsum(0).int()])
            used = [page for page in range(TILING.pages) if stops[page] > starts[page]]
            assert reach == sum(int(orders[page]) <= int(batch.order[tokens[-1]]) for page in used)
            assert batch.tiles.orders[row, used].tolist() == orders[used].tolist()
    assert sorted(seen) == list(range(batch.size))
    assert (batch.rows[batch.count :].eq(len(batch.pages) - 1).all() and not batch.pages[-1].any()) or batch.count == batch.size


def test_sizes_follow_from_the_shape_alone() -> None:
    """The same packed size for other rows, tables, samples and gaps: what a graph is keyed by."""
    sizes: dict[tuple[int, int], set[tuple[int, ...]]] = {}
    for counts, histories in (
        ([1] * 5, [0] * 5),
        ([1] * 7, [14] * 7),
        ([2, 1, 1, 1], [9, 0, 3, 4]),
        ([8], [3]),
        ([5, 1], [0, 17]),
        ([16, 1, 3], [1, 2, 3]),
        ([12, 4, 8], [0, 0, 9]),
        ([20], [1]),
        ([21, 1], [2, 18]),
    ):
        batch = batch_of(counts, histories)
        assert batch.tiles is not None
        found = (len(batch.packed), *batch.pages.shape, len(batch.sampled), batch.tiles.longest)
        sizes.setdefault(batch.shape, set()).add(found)
        blank = RaggedBatch.blank_tiled(*batch.shape, TILING, CPU)
        assert blank.tiles is not None and len(blank.packed) == len(batch.packed) and blank.shape == batch.shape
        over = blank.over(batch.packed)
        assert over.tiles is not None and over.tiles.longest == batch.tiles.longest
        for name in ("positions", "order", "slots", "pages", "starts", "stops", "prefix_pages", "sampled"):
            assert torch.equal(getattr(over, name), getattr(batch, name)), name
        assert torch.equal(over.tiles.table, batch.tiles.table) and torch.equal(over.tiles.orders, batch.tiles.orders)
    assert all(len(found) == 1 for found in sizes.values()) and len(sizes) < 9
    assert sizes.keys() >= {(8, 8), (8, 1), (24, 3)}


@pytest.mark.parametrize("counts", [[1], [1] * 7, [21, 1, 1], [9, 9, 2, 4]])
def test_an_upload_is_written_whole_where_it_is_wanted(counts: list[int]) -> None:
    """Memory that holds anything becomes what `tiled` uploads; rows of pages that are not neighbours, too."""
    held = pool()
    tables = [PageTable(held, 12) for _ in counts]
    for _ in range(2):
        for table in tables:
            table.append(3)
    for _ in range(2):
        appended = [table.append(count) for table, count in zip(tables, counts, strict=True)]
        batch = RaggedBatch.tiled(appended, TILING)
        for junk in (-7, 99):
            packed, shape = pack(appended, TILING, partial(_junk, junk))
            assert shape == batch.shape and torch.equal(packed, batch.packed)
        assert batch.slots[: batch.count].tolist() == [place for row in appended for place in row.slots.tolist()]


def _junk(value: int, length: int) -> torch.Tensor:
    return torch.full((length,), value, dtype=torch.int32)


def test_levels() -> None:
    assert [TILING.levels(tokens) for tokens in (1, 2, 8, 24, 2048)] == [
        (1,),
        (1, 2),
        (1, 2, 4, 8),
        (3, 6, 12, 24),
        (256, 512, 1024, 2048),
    ]
    assert Tiling(4, 4, tile=4).levels(64) == (16, 32, 64)
    assert all(len(TILING.levels(tokens)) <= 4 for tokens in BUCKETS)
    assert [TILING.longest(64, tiles) for tiles in TILING.levels(64)] == [16, 16, 16, 1]
    assert [TILING.height(tiles) for tiles in (1, 21, 500)] == [1, 21, 21]


def test_a_blank_sees_nothing_and_writes_to_the_sink() -> None:
    blank = RaggedBatch.blank_tiled(48, 6, TILING, CPU)
    assert blank.tiles is not None
    assert blank.order.eq(-1).all() and not blank.slots.any() and not blank.pages.any() and not blank.tiles.table[3].any()
    assert blank.tiles.table[2].tolist() == [16, 16, 16, 0, 0, 0]


def test_what_does_not_fit_is_refused() -> None:
    held = pool()
    tables = [PageTable(held, 12) for _ in range(3)]
    with pytest.raises(ValueError, match="rows: 3, not more than 2"):
        RaggedBatch.tiled([table.append(1) for table in tables], Tiling(pages=4, rows=2))
    with pytest.raises(ValueError, match="pages: 3 of a row, not more than 2"):
        RaggedBatch.tiled([tables[0].append(10)], Tiling(pages=2, rows=2))
    with pytest.raises(ValueError, match="appended: no row"):
        RaggedBatch.tiled([], TILING)
    for tokens, tiles in ((5, 5), (8, 3), (8, 0)):
        with pytest.raises(ValueError, match="tokens, tiles"):
            RaggedBatch.blank_tiled(tokens, tiles, TILING, CPU)
    stale = tables[0].append(1)
    tables[0].append(1)
    with pytest.raises(StaleAppend):
        RaggedBatch.tiled([stale], TILING)
