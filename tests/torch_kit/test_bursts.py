"""Steps that are packed ahead, against the batches that one makes step by step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torch_kit.bursts import pack_steps
from torch_kit.page_table import Appended, PageTable
from torch_kit.pages import PagePool
from torch_kit.ragged import RaggedBatch, StaleAppend
from torch_kit.tiles import Tiling

PAGE = 16
TILING = Tiling(pages=8, rows=5)
CPU = torch.device("cpu")


def _tables() -> list[PageTable]:
    """A prefix and a gap, a page whose first offset is not 0, a page that ends with the next token, an empty table."""
    # each of a pool of its own, so that page numbers do not depend on who appends first
    tables = [PageTable(PagePool(layers=1, kv_heads=1, head_dim=2, pages=40, page=PAGE), 8) for _ in range(4)]
    tables[0].append_prefix(19)
    tables[0].append(30)
    tables[0].cut(tables[0].window_start, tables[0].window_start + 5)
    tables[1].append(40)
    tables[1].cut(0, 19)
    tables[2].append(2 * PAGE - 1)
    return tables


@pytest.mark.behaviour("N45")
@pytest.mark.parametrize("is_tiled", [False, True], ids=["plain", "tiled"])
def test_each_step_is_packed_as_if_it_were_the_only_one(is_tiled: bool) -> None:
    counts = [3, 3, 3, 3]
    appended = [table.append(count) for table, count in zip(_tables(), counts, strict=True)]
    one_by_one = _tables()
    expected = []
    for _ in range(3):
        rows = [table.append(1) for table in one_by_one]
        expected.append(RaggedBatch.tiled(rows, TILING) if is_tiled else RaggedBatch.steps(rows))
    like = RaggedBatch.blank_tiled(4, 4, TILING, CPU) if is_tiled else RaggedBatch.blank(4, 8, gapped=True, device=CPU)
    lines = pack_steps(appended, like)
    assert np.array_equal(lines, np.stack([batch.packed.numpy() for batch in expected]))


@pytest.mark.parametrize("is_tiled", [False, True], ids=["plain", "tiled"])
def test_a_row_is_padding_behind_its_tokens(is_tiled: bool) -> None:
    tables = _tables()
    appended = [tables[0].append(1), tables[2].append(4), tables[3].append(2)]
    like = RaggedBatch.blank_tiled(4, 4, TILING, CPU) if is_tiled else RaggedBatch.blank(4, 8, gapped=True, device=CPU)
    lines = torch.from_numpy(pack_steps(appended, like))
    assert len(lines) == 4
    for step, line in enumerate(lines):
        batch = like.over(line)
        for row, each in enumerate(appended):
            if step < each.count:
                assert int(batch.slots[row]) == each.slots[step] and int(batch.order[row]) == each.order + step
                assert int((batch.stops - batch.starts)[row].sum()) == each.order + step + 1
            else:
                assert int(batch.order[row]) == -1 and int(batch.slots[row]) == 0 and not batch.pages[row].any()
                assert batch.tiles is None or int(batch.tiles.table[3, row]) == 0
        assert int(batch.order[3]) == -1 and int(batch.rows[3]) == 3


def _stale() -> list[Appended]:
    table = _tables()[1]
    appended = [table.append(2)]
    table.rewind(1)
    return appended


def test_what_cannot_be_packed_is_refused() -> None:
    small = RaggedBatch.blank(2, 8, gapped=False, device=CPU)
    with pytest.raises(ValueError, match="no row"):
        pack_steps([], small)
    with pytest.raises(StaleAppend):
        pack_steps(_stale(), small)
    with pytest.raises(ValueError, match="like"):
        pack_steps([table.append(1) for table in _tables()[:3]], small)
    with pytest.raises(ValueError, match="like"):
        pack_steps([_tables()[1].append(1)], RaggedBatch.blank(2, 1, gapped=False, device=CPU))
    with pytest.raises(ValueError, match="tiles"):
        pack_steps([_tables()[1].append(1)], RaggedBatch.blank_tiled(16, 4, TILING, CPU))
