"""Batches of one token a row, padded to few shapes; and graphs of them, where there is a device."""

from __future__ import annotations

from threading import Thread

import pytest
import torch
from torch import Tensor

from tests.torch_kit.support import QWEN, decoder, embeddings, feed, reference, table
from torch_kit.graphs import Graphs
from torch_kit.ragged import RaggedBatch, width
from torch_kit.staging import Staging

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_a_padded_step_equals_an_exact_one() -> None:
    ours = decoder(reference(QWEN), QWEN)
    tables = [table(ours, reserve=4) for _ in range(6)]
    histories = [embeddings(count, seed=count) for count in (5, 17, 1)]
    for each in (tables[:3], tables[3:]):
        feed(ours, each, histories)
    news = [embeddings(1, seed=30 + row) for row in range(3)]
    exact = feed(ours, tables[:3], news, exact=True)
    batch = RaggedBatch.steps([each.append(1) for each in tables[3:]])
    assert (batch.size, tuple(batch.pages.shape), len(batch.sampled)) == (4, (4, 8), 0)
    states = torch.cat([*news, embeddings(1, seed=99)])
    padded = ours.forward(states, batch.over(batch.packed.clone()))
    assert padded.isfinite().all() and (padded[:3] - torch.cat(exact)).abs().max() < 1e-5


def test_a_blank_step_changes_no_page_but_the_sink() -> None:
    ours = decoder(reference(QWEN), QWEN)
    session = table(ours)
    feed(ours, [session], [embeddings(9, seed=1)])
    batch = RaggedBatch.steps([session.append(1)])
    before = ours.pool.storage[:, 1:].nan_to_num().clone()
    hidden = ours.forward(embeddings(1, seed=2), batch.over(torch.zeros_like(batch.packed)))
    assert hidden.isfinite().all() and torch.equal(ours.pool.storage[:, 1:].nan_to_num(), before)


def test_a_step_is_one_token_a_row() -> None:
    ours = decoder(reference(QWEN), QWEN)
    with pytest.raises(ValueError, match="appended: more than one token"):
        RaggedBatch.steps([table(ours).append(2)])
    with pytest.raises(ValueError, match="appended: no row"):
        RaggedBatch.steps([])


def test_widths_are_few() -> None:
    assert [width(pages) for pages in (1, 8, 9, 130, 161, 193)] == [8, 8, 16, 144, 192, 256]


def test_without_cuda_there_are_none() -> None:
    assert not Graphs(torch.device("cpu")).on and not Graphs(torch.device("cuda"), plain=True).on


def test_a_card_by_its_number_becomes_that_of_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events and Triton's kernels are of the thread's card, and nothing says so where they are used."""
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    for name in ("cpu", "cuda", "cuda:1"):
        Graphs(torch.device(name), plain=True)
    assert chosen == [torch.device("cuda:1")]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_what_is_staged_for_another_card_lands_when_it_is_waited_for() -> None:
    device, found = torch.device("cuda:1"), list[int]()

    def work() -> None:
        graphs, staging = Graphs(device), Staging(device)
        large = torch.ones(4096, 4096, device=device)

        def late(given: Tensor) -> Tensor:
            return (large @ large).sum().view(1) * 0 + given

        for value in range(8):
            staging.begin()
            given = staging.take("given", (1,), torch.float32)
            given.numpy()[:] = value
            made = graphs(
                "sum", lambda given: (large @ large).sum().view(1) * 0 + given, (given,), lambda: (torch.zeros(1, device=device),)
            )
            answer = staging.take("answer", (1,), torch.float32)
            answer.copy_(made, non_blocking=True)
            staging.end().wait()
            found.append(int(answer))

    # which card is a thread's own
    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert found == list(range(8))


@CUDA
def test_a_replay_equals_a_run() -> None:
    device = torch.device("cuda")
    graphs, state = Graphs(device), torch.zeros(3, device=device)

    def count(rows: Tensor, amount: Tensor) -> Tensor:
        state[rows] += amount
        return state[rows] * 2

    def blank() -> tuple[Tensor, Tensor]:
        return torch.full((1,), 2, device=device), torch.ones(1, device=device)

    for step in range(1, 4):
        made = graphs("count", count, (torch.tensor([step % 2], device=device), torch.full((1,), float(step), device=device)), blank)
        assert made.tolist() == [[2.0], [4.0], [8.0]][step - 1]
    assert state[:2].tolist() == [2.0, 4.0] and len(graphs) == 1
