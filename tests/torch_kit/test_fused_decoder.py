"""The fused forward against the plain one, over the same history of sessions."""

from __future__ import annotations

import pytest
import torch

from tests.torch_kit.support import HIDDEN, QWEN, decoder, embeddings, reference
from tests.torch_kit.support.fused import DEVICE, GROUPED, SINGLE, TILING, Both, fused, prefix, window
from torch_kit.decoder import DecoderConfig, WeightError
from torch_kit.fused_decoder import FusedDecoder
from torch_kit.graphs import Graphs
from torch_kit.page_table import PageTable
from torch_kit.ragged import RaggedBatch
from torch_kit.tiles import Tiling

SHAPES = pytest.mark.parametrize("config", [GROUPED, SINGLE], ids=["grouped", "single"])


@SHAPES
@pytest.mark.behaviour("N46")
def test_rows_in_all_phases_equal_the_plain_path(config: DecoderConfig) -> None:
    both = Both(config, 3)
    both.feed([(0, prefix(18)), (1, prefix(5))], embeddings(23, seed=1))
    both.feed([(0, window(20)), (1, window(4))], embeddings(24, seed=2))
    # a gap, and pages whose first valid offset is not 0; what was cut off is NaN or garbage
    both.change(0, lambda table: table.cut(table.window_start, table.window_start + 19))
    both.change(1, lambda table: table.cut(table.window_start, table.window_start + 3))
    assert both.tables[0][0].gap == 19 and both.tables[0][0].starts[2] == 3
    mixed = both.feed([(0, window(18)), (1, window(1)), (2, window(2))], embeddings(21, seed=3))
    assert mixed.shape == (24, 6) and mixed.gapped and mixed.tiles is not None and mixed.tiles.longest == 16
    steps = both.feed([(row, window(1)) for row in range(3)], embeddings(3, seed=4))
    assert steps.shape == (4, 4) and steps.tiles is not None and steps.tiles.longest == 1
    # more prefix behind a window: its tokens see the prefix alone
    both.change(1, lambda table: table.cut_prefix(4))
    both.feed([(1, prefix(5)), (0, window(1))], embeddings(6, seed=5))


@SHAPES
def test_only_rows_that_sample_come_out(config: DecoderConfig) -> None:
    both = Both(config, 3)
    both.feed([(0, window(2)), (1, window(1)), (2, window(4))], embeddings(7, seed=1), [True, False, True], only_sampled=True)
    both.feed([(0, window(1)), (2, window(1))], embeddings(2, seed=2), [False, True], only_sampled=True)


def test_freed_pages_are_poison_that_nobody_reads() -> None:
    both = Both(SINGLE, 2)
    both.feed([(0, window(18)), (1, window(6))], embeddings(24, seed=1))
    both.change(0, PageTable.clear)
    both.feed([(1, window(14)), (0, window(1))], embeddings(15, seed=2))


def test_batched_equals_alone() -> None:
    both = Both(GROUPED, 6)
    histories = embeddings(8, seed=1)
    both.feed([(0, window(8)), (3, window(8))], histories.repeat(2, 1))
    both.feed([(1, window(2)), (4, window(2))], histories[:2].repeat(2, 1))
    new = embeddings(8, seed=2)

    def run(rows: list[tuple[int, int]], inputs: torch.Tensor) -> torch.Tensor:
        batch = RaggedBatch.tiled([both.tables[session][1].append(count) for session, count in rows], TILING)
        return both.fused.forward(inputs.to(DEVICE), batch)[: batch.count].cpu()

    together = run([(0, 1), (1, 5), (2, 2)], new)
    alone = torch.cat([run([(3, 1)], new[:1]), run([(4, 5)], new[1:6]), run([(5, 2)], new[6:])])
    assert (together - alone).abs().max() < 1e-5


def test_padding_writes_to_the_sink_alone_and_its_states_are_finite() -> None:
    ours = fused(reference(GROUPED), GROUPED)
    batch = RaggedBatch.blank_tiled(16, 2, TILING, DEVICE)
    hidden = ours.forward(torch.zeros(16, HIDDEN, device=DEVICE), batch)
    assert hidden.isfinite().all() and ours.pool.storage[:, 1:].isnan().all()


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
def test_one_graph_of_a_shape_serves_all_tables() -> None:
    both = Both(GROUPED, 3)
    graphs = Graphs(DEVICE)
    both.feed([(0, prefix(9)), (1, window(40)), (2, window(2))], embeddings(51, seed=1))
    blank = RaggedBatch.blank_tiled(4, 4, TILING, DEVICE)

    def run(packed: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        return both.fused.forward(states, blank.over(packed))

    for step in range(20):
        inputs = embeddings(3, seed=10 + step)
        expected = both.plain.forward(inputs, RaggedBatch.of([plain.append(1) for plain, _ in both.tables]))[:3]
        batch = RaggedBatch.tiled([other.append(1) for _, other in both.tables], TILING)
        states = torch.cat((inputs, torch.zeros(1, HIDDEN))).to(DEVICE)
        hidden = graphs(batch.shape, run, (batch.packed, states), lambda: (blank.packed, torch.zeros(4, HIDDEN, device=DEVICE)))
        assert (hidden[:3].cpu() - expected).abs().max() < 1e-5
        if step == 9:
            both.change(1, lambda table: table.cut(0, 35))
    assert len(graphs) == 1


def test_what_the_kernels_do_not_serve_is_refused() -> None:
    model = reference(GROUPED)
    with pytest.raises(ValueError, match="page: 8 is no power of two from 16 on"):
        fused(model, GROUPED, page=8)
    ours = fused(model, GROUPED)
    plain = RaggedBatch.of([PageTable(ours.pool, 2).append(3)])
    with pytest.raises(ValueError, match="batch: it has no tiles"):
        ours.forward(torch.zeros(3, HIDDEN, device=DEVICE), plain)
    with pytest.raises(ValueError, match="embeddings"):
        ours.forward(torch.zeros(2, HIDDEN, device=DEVICE), plain)
    weights = {name: tensor.to(DEVICE) for name, tensor in model.state_dict().items() if "o_proj" not in name}
    with pytest.raises(WeightError, match=r"o_proj\.weight: missing"):
        FusedDecoder(weights, GROUPED, ours.pool)


def test_without_cuda_and_interpreter_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    model = reference(QWEN)
    with pytest.raises(ValueError, match="pool: on cpu"):
        FusedDecoder(dict(model.state_dict()), QWEN, decoder(model, QWEN).pool)


def test_the_plain_path_reads_a_tiled_batch_alike() -> None:
    model = reference(QWEN)
    ours = decoder(model, QWEN)
    inputs, tables = embeddings(12, seed=1), [PageTable(ours.pool, 4) for _ in range(4)]
    expected = ours.forward(inputs, RaggedBatch.of([tables[0].append(11), tables[1].append(1)], exact=True))
    batch = RaggedBatch.tiled([tables[2].append(11), tables[3].append(1)], Tiling(pages=5, rows=2), [False, True])
    assert batch.size == 16 and batch.sampled.tolist() == [11, 0, 0][: len(batch.sampled)]
    assert (ours.forward(inputs, batch)[:12] - expected).abs().max() < 1e-5
