"""The book-keeping of pages against a list of what each token's place should be."""

from __future__ import annotations

import random

import pytest
import torch

from torch_kit.page_table import NEVER, PageTable, PositionsExhausted
from torch_kit.pages import SINK, PagePool, PoolExhausted, pages_for
from torch_kit.ragged import BUCKETS, RaggedBatch, bucket
from torch_kit.rope import MAX_POSITION

PAGE = 4


def _pool(pages: int = 17, *, layers: int = 1) -> PagePool:
    return PagePool(layers=layers, kv_heads=1, head_dim=2, pages=pages, page=PAGE, poison=True)


def _places(table: PageTable) -> list[int]:
    """Slots of all valid tokens from left to right."""
    spans = zip(table.pages, table.starts, table.stops, strict=True)
    return [page * PAGE + offset for page, start, stop in spans for offset in range(start, stop)]


def _listed(table: PageTable, width: int) -> list[list[int]]:
    """Pages, starts, stops and orders, padded."""
    lengths = [stop - start for start, stop in zip(table.starts, table.stops, strict=True)]
    orders = [sum(lengths[:page]) for page in range(len(lengths))]
    fields = ((table.pages, 0), (table.starts, 0), (table.stops, 0), (orders, NEVER))
    return [[*field, *[padding] * (width - len(field))] for field, padding in fields]


def test_any_sequence_of_changes_keeps_every_token_in_place() -> None:
    for seed in range(60):
        draw = random.Random(seed)
        pool = _pool()
        table = PageTable(pool, 12)
        prefix: list[int] = []
        window: list[int] = []
        for _ in range(60):
            kind, count = draw.choice(["append", "append", "prefix", "cut", "rewind", "cut_prefix"]), draw.randint(1, 9)
            position = table.position
            if kind in ("append", "prefix"):
                call = table.append if kind == "append" else table.append_prefix
                before = (_places(table), table.position, table.version)
                try:
                    appended = call(count)
                except PoolExhausted:
                    assert (_places(table), table.position, table.version) == before
                    continue
                (window if kind == "append" else prefix).extend(appended.slots.tolist())
                assert appended.order == (len(prefix) + len(window) if kind == "append" else len(prefix)) - count
                assert appended.position == (position if kind == "append" else len(prefix) - count)
            elif kind == "cut":
                count = min(count, len(window))
                table.cut(table.window_start, table.window_start + count)
                del window[:count]
                assert table.position == position
            elif kind == "rewind":
                count = min(count, len(window))
                table.rewind(count)
                window = window[: len(window) - count]
                assert table.position == position - count
            else:
                prefix = prefix[:count]
                table.cut_prefix(len(prefix))
            assert _places(table) == prefix + window
            assert table.listed(13).tolist() == _listed(table, 13)
            assert table.window_start - table.gap == table.prefix_length == len(prefix)
            assert SINK not in table.pages and len(set(table.pages)) == table.page_count == pool.held
        table.release()
        assert pool.held == 0 and pool.free == 16


def test_a_reservation_bounds_its_table_and_protects_others() -> None:
    pool = _pool(pages=7)
    first, second = PageTable(pool, 4), PageTable(pool, 2)
    with pytest.raises(PoolExhausted) as refusal:
        PageTable(pool, 1)
    assert (refusal.value.wanted, refusal.value.free) == (1, 0)
    first.append(16)
    with pytest.raises(PoolExhausted):
        first.append(1)
    second.append(8)
    first.clear()
    assert pool.held == 2 and pool.free == 0
    first.append(16)
    first.release()
    assert pool.free == 4


def test_pages_for_is_enough_in_the_worst_case() -> None:
    pool = _pool(pages=40)
    for tokens in range(1, 30):
        for lead in range(PAGE):
            table = PageTable(pool, pages_for(tokens, PAGE))
            for _ in range(tokens + lead):
                table.append(1)
                if table.window_length == tokens:
                    table.cut(table.window_start, table.window_start + 1)
            table.release()


def test_no_token_has_a_position_that_no_rotation_is_made_for() -> None:
    """A session that ran for days: it has the last position, and no more."""
    table = PageTable(_pool(), 4)
    table.append_prefix(3)
    table.position = MAX_POSITION - 4
    assert table.append(3).position == MAX_POSITION - 4
    for count in (3, 1000):
        with pytest.raises(PositionsExhausted, match="positions"):
            table.append(count)
        assert table.window_length == 3 and table.position == MAX_POSITION - 1
    assert table.append(2).gap == MAX_POSITION - 4 - 3 and table.position == MAX_POSITION + 1
    with pytest.raises(PositionsExhausted):
        table.append(1)


@pytest.mark.parametrize(("start", "stop"), [(0, 2), (4, 5), (3, 2), (3, 9)])
def test_a_cut_must_begin_the_window(start: int, stop: int) -> None:
    table = PageTable(_pool(), 4)
    table.append(8)
    table.cut(0, 3)
    with pytest.raises(ValueError, match="cut"):
        table.cut(start, stop)
    assert table.window_length == 5


def test_counts_out_of_range_are_refused() -> None:
    table = PageTable(_pool(), 4)
    table.append_prefix(3)
    table.append(2)
    for call in (lambda: table.rewind(3), lambda: table.append(0), lambda: table.cut_prefix(4)):
        with pytest.raises(ValueError):
            call()
    table.share_prefix()
    with pytest.raises(ValueError):
        table.cut_prefix(2)
    with pytest.raises(ValueError):
        table.share_prefix()


def test_a_pool_knows_its_size() -> None:
    pool = _pool(layers=3)
    assert pool.bytes == 17 * pool.page_bytes == pool.storage.numel() * 4
    assert pool.layer(1).data_ptr() + 17 * 2 * PAGE * 2 * 4 == pool.layer(2).data_ptr()
    assert pool.storage[:, 1:].isnan().all() and not pool.storage[:, SINK].isnan().any()
    with pytest.raises(ValueError, match="pages"):
        _pool(pages=1)


def test_a_batch_is_one_upload_with_padding_that_writes_to_the_sink() -> None:
    pool = _pool()
    first, second = PageTable(pool, 6), PageTable(pool, 6)
    first.append_prefix(3)
    first.append(9)
    first.cut(3, 8)
    batch = RaggedBatch.of([first.append(3), second.append(2)], [True, False])
    assert (batch.size, batch.count, batch.longest, batch.gapped) == (8, 5, 3, True)
    assert batch.positions.tolist() == [12, 13, 14, 0, 1, 0, 0, 0]
    assert batch.prefix_positions.tolist() == [7, 8, 9, 0, 1, 0, 0, 0]
    assert batch.order.tolist() == [7, 8, 9, 0, 1, -1, -1, -1]
    assert batch.rows.tolist() == [0, 0, 0, 1, 1, 3, 3, 3]
    assert batch.slots[batch.count :].eq(0).all() and (batch.slots[: batch.count] >= PAGE).all()
    assert batch.starts[0].tolist() == [0, 1, 0] and batch.stops[0].tolist() == [3, 4, 4]
    assert batch.prefix_pages.tolist() == [1, 0, 0, 0] and batch.sampled.tolist() == [2]
    assert batch.pages[1, 1:].eq(SINK).all() and batch.stops[1:, 1:].eq(0).all()
    assert batch.packed.dtype == torch.int32 and batch.slots.untyped_storage().data_ptr() == batch.packed.untyped_storage().data_ptr()


def test_sizes_that_do_not_fit_are_refused() -> None:
    table = PageTable(_pool(), 4)
    appended = table.append(5)
    with pytest.raises(ValueError, match="no row"):
        RaggedBatch.of([])
    for sizes in ({"tokens": 4}, {"pages": 1}, {"tokens": 8, "rows": 1}):
        with pytest.raises(ValueError, match="smaller"):
            RaggedBatch.of([appended], **sizes)


def test_buckets() -> None:
    assert [bucket(count) for count in (1, 3, 17, 97, 1025, 2305)] == [1, 4, 24, 128, 1280, 2305]
    assert sorted(BUCKETS) == list(BUCKETS)
