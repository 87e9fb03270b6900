"""Codes from graphs, and from fused kernels, against plain ones: three sessions that come and go, in batches padded to four."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stage_kit import Label
from talker_svc.minicpmo45.engine import MiniCpmTalkerEngine
from talker_svc.minicpmo45.shapes import TiledShapes
from tests.support.graphs import RehearsedGraphs
from tests.talker_svc.minicpmo45.support.harness import Talk, engine, payload, run
from torch_kit.page_table import PageTable
from torch_kit.pages import PagePool

TURN = Label(epoch=0, turn=1, response_id="t1")
CONFIGS: tuple[dict[str, Any], ...] = ({}, {"greedy": True}, {"temperature": 0.5, "repetition_penalty": 1.4})


def _talker(path: Path, **settings: Any) -> MiniCpmTalkerEngine:
    return engine(path, slots=3, tail_codes=30, **settings)


def _codes(talker: MiniCpmTalkerEngine, units: int = 3) -> list[list[list[int]]]:
    talks = [Talk(talker, f"session {number}", **config) for number, config in enumerate(CONFIGS)]
    for unit in range(units):
        last = unit == units - 1
        for number, talk in enumerate(talks):
            talk.say(TURN, payload(2 + number, 10 * unit + number, turn_end=last), last=last)
            run(talker, *talks[: number + 1], steps=5 // talker._speaker.burst)
        run(talker, *talks)
    for talk in talks:
        talker.close(talk.slot)
    return [talk.codes(TURN) for talk in talks]


@pytest.mark.behaviour("N48")
@pytest.mark.parametrize("burst", [1, 5])
def test_codes_from_graphs_are_plain_codes(tiny_checkpoint: Path, burst: int) -> None:
    plain = _codes(_talker(tiny_checkpoint))
    talker = _talker(tiny_checkpoint, burst=burst)
    graphs = talker._speaker.graphs = RehearsedGraphs()
    assert _codes(talker) == plain
    assert {key[:2] for key in graphs.keys} == {("codes", size) for size in (1, 2, 4)}


def test_what_is_captured_at_start_is_what_is_met(tiny_checkpoint: Path) -> None:
    talker = _talker(tiny_checkpoint, burst=5)
    graphs = talker._speaker.graphs = RehearsedGraphs()
    talker._warm_up()
    before = set(graphs.prepared)
    _codes(talker)
    assert graphs.keys and set(graphs.keys) <= before


def _begun(talker: MiniCpmTalkerEngine) -> list[list[int]]:
    """The first codes of two sessions, of which the second begins beside the first one's codes."""
    talks = [Talk(talker, f"session {number}") for number in range(2)]
    for number, talk in enumerate(talks):
        talk.say(TURN, payload(3 + number, number))
        talker.step([each.slot for each in talks[: number + 1]])
    codes = [talk.slot.state.turn.unit.codes for talk in talks]
    for talk in talks:
        talker.close(talk.slot)
    return codes


def test_fused_kernels_draw_the_same_codes_and_all_of_it_replays(tiny_checkpoint: Path) -> None:
    pytest.importorskip("triton")
    from tests.support.interpreter import mend_interpreter

    mend_interpreter()
    common: dict[str, Any] = {"slots": 2, "positions": 256, "burst": 2, "ahead": False}
    if torch.cuda.is_available():
        common |= {"device": "cuda", "dtype": "float32"}
    plain = _begun(engine(tiny_checkpoint, **common))
    assert [len(codes) for codes in plain] == [4, 2]
    talker = engine(tiny_checkpoint, kernels="fused", **common)
    graphs = talker._speaker.graphs = RehearsedGraphs()
    assert _begun(talker) == plain
    assert {key[0] for key in graphs.keys} == {"codes", "opening"}
    singles = talker._shapes().singles_to_prepare()
    shapes: set[tuple[Any, ...]] = {("codes", like.size, like.pages.shape[1], count) for like in singles for count in (1, 2)}
    shapes |= {("opening", *batch.shape) for batch in talker._shapes().mixed_to_prepare()}
    assert set(graphs.keys) <= shapes


def _interrupted(talker: MiniCpmTalkerEngine, steps: int) -> list[list[int]]:
    """The codes of two sessions, of which one is cancelled while its second burst is on its way and begins anew at once."""
    talk, other = (Talk(talker, f"session {number}") for number in range(2))
    for number, each in enumerate((talk, other)):
        each.say(TURN, payload(2, number))
    run(talker, talk, other, steps=2)
    talk.cancel()
    talk.say(Label(epoch=1, turn=2, response_id="t2"), payload(2, 7))
    run(talker, talk, other, steps=steps)
    codes = [each.slot.state.turn.unit.codes for each in (talk, other)]
    for each in (talk, other):
        talker.close(each.slot)
    assert talker._pool.held == 0
    return codes


@pytest.mark.behaviour("N45", "N48")
def test_fused_bursts_that_are_launched_ahead_draw_the_same_codes(tiny_checkpoint: Path) -> None:
    pytest.importorskip("triton")
    from tests.support.interpreter import mend_interpreter

    mend_interpreter()
    common: dict[str, Any] = {"slots": 2, "positions": 256, "burst": 2}
    if torch.cuda.is_available():
        common |= {"device": "cuda", "dtype": "float32"}
    plain = _interrupted(engine(tiny_checkpoint, kernels="plain", ahead=False, **common), steps=2)
    talker = engine(tiny_checkpoint, kernels="fused", ahead=True, **common)
    talker._speaker.graphs = RehearsedGraphs()
    ahead = _interrupted(talker, steps=2)
    # one burst less has landed
    assert [len(codes) for codes in plain] == [4, 8] and [len(codes) for codes in ahead] == [2, 6]
    assert ahead == [codes[: len(codes) - 2] for codes in plain]


def test_every_mixed_batch_has_a_shape_that_is_prepared() -> None:
    slots, longest, pages = 6, 40, 4
    shapes = TiledShapes(slots, pages, longest, torch.device("cpu"))
    known = {batch.shape for batch in shapes.mixed_to_prepare()}
    pool = PagePool(layers=1, kv_heads=1, head_dim=2, pages=slots * pages + 1)
    generator = torch.Generator().manual_seed(0)
    for trial in range(120):
        rows = 1 + trial % slots
        most = (2, longest + 1)[trial % 2]
        counts = torch.randint(1, most, (rows,), generator=generator).tolist() if trial else [longest] * slots
        tables = [PageTable(pool, pages) for _ in counts]
        batch = shapes.mixed([table.append(count) for table, count in zip(tables, counts, strict=True)])
        assert batch.shape in known and shapes.replays(batch)
        for table in tables:
            table.release()
