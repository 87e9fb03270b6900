"""The kernel against the plain oracle on the same batch, in every way it may be launched."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.torch_kit.support.fused import DEVICE
from torch_kit.attention import PlainAttention
from torch_kit.kernels.paged_attention import Launch, PagedAttention, launch
from torch_kit.page_table import PageTable
from torch_kit.pages import PagePool
from torch_kit.ragged import RaggedBatch
from torch_kit.tiles import Tiling

HEAD_DIM = 16
TILING = Tiling(pages=7, rows=5)


def scene(heads: int, kv_heads: int, counts: list[int]) -> tuple[RaggedBatch, Tensor, Tensor, Tensor]:
    """Rows of three kinds: a gap in whole pages and within one, no gap, nothing before. Batch, both queries, cache.

    What holds no token is NaN, the sink too.
    """
    pool = PagePool(layers=1, kv_heads=kv_heads, head_dim=HEAD_DIM, pages=30, page=16, device=DEVICE, poison=True)
    appended = []
    for index, count in enumerate(counts):
        table = PageTable(pool, 7)
        if index % 3 == 0:
            table.append_prefix(19)
            table.append(50)
            table.cut(19, 19 + 37)
        elif index % 3 == 1:
            table.append(23)
        appended.append(table.append(count))
    batch = RaggedBatch.tiled(appended, TILING)
    cache = torch.full_like(pool.layer(0), torch.nan)
    for row in appended:
        for page, start, stop in zip(row.table.pages, row.table.starts, row.table.stops, strict=True):
            cache[page, :, :, start:stop] = torch.randn(2, kv_heads, stop - start, HEAD_DIM, device=DEVICE)
    query, prefix_query = (torch.randn(batch.size, heads, HEAD_DIM, device=DEVICE) * 2 for _ in range(2))
    return batch, query, prefix_query, cache


@pytest.mark.parametrize(
    ("heads", "kv_heads", "counts", "shape"),
    [(4, 2, [1, 1, 1, 1], (4, 4)), (4, 2, [17, 1, 3], (24, 6)), (3, 3, [5, 1, 1], (8, 4)), (3, 1, [1, 18, 2], (24, 6))],
)
def test_it_equals_the_oracle_however_it_is_split(heads: int, kv_heads: int, counts: list[int], shape: tuple[int, int]) -> None:
    batch, query, prefix_query, cache = scene(heads, kv_heads, counts)
    assert batch.shape == shape and batch.gapped
    plain = PlainAttention(heads // kv_heads)
    expected = plain(plain.plan(batch, 16), query, prefix_query, cache)[: batch.count]
    for how in (Launch(1, 4, 2), Launch(4, 4, 2)):
        out = torch.full_like(query, torch.nan)
        PagedAttention(batch, heads, kv_heads, HEAD_DIM, how)(batch, query, prefix_query, cache, out)
        assert (out[: batch.count] - expected).abs().max() < 1e-5
        # padding sees nothing, and its outcome is written
        assert out[batch.count :].eq(0).all()


def test_a_token_that_sees_nothing_gives_nothing() -> None:
    batch, query, prefix_query, cache = scene(4, 2, [1, 1, 1, 1])
    batch.order[1] = -1
    for splits in (1, 2):
        out = torch.full_like(query, torch.nan)
        PagedAttention(batch, 4, 2, HEAD_DIM, Launch(splits, 4, 2))(batch, query, prefix_query, cache, out)
        assert out[1].eq(0).all() and out.isfinite().all() and out[[0, 2, 3]].abs().sum() > 1


@pytest.mark.behaviour("S2")
@pytest.mark.parametrize("splits", [1, 2, 4])
@pytest.mark.parametrize("kind", [0, 1])
def test_what_is_not_finite_comes_out_in_its_own_row_alone(kind: int, splits: int) -> None:
    """One key, or one value, in a page of many: the maximum of scores knows no NaN, and the row must not do without them."""
    batch, query, prefix_query, cache = scene(4, 2, [1, 1, 1, 1])
    page, start = int(batch.pages[1, 1]), int(batch.starts[1, 1])
    cache[page, kind, :, start] = torch.nan
    out = torch.zeros_like(query)
    attention = PagedAttention(batch, 4, 2, HEAD_DIM, Launch(splits, 4, 2))
    attention._partials.fill_(1.0)
    attention(batch, query, prefix_query, cache, out)
    assert out[1].isnan().all() and out[[0, 2, 3]].isfinite().all()


def test_the_launch_follows_from_the_shape() -> None:
    def chosen(tokens: int, tiles: int, heads: int, kv_heads: int) -> Launch:
        return launch(RaggedBatch.blank_tiled(tokens, tiles, Tiling(pages=70, rows=130), torch.device("cpu")), heads, kv_heads)

    assert [chosen(count, count, 32, 8).splits for count in (1, 8, 32, 64, 128)] == [16, 16, 8, 2, 1]
    assert [chosen(count, count, 12, 12).splits for count in (1, 32, 128)] == [16, 4, 1]
    assert chosen(2048, 256, 32, 8).splits == 1 and chosen(16, 2, 32, 8).splits == 16
