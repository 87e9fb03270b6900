"""A whole step by fused kernels against the plain one: the same sessions, in CUDA's graphs or rehearsed in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton")

from minicpmo45.config import Config, LlmConfig, tiny
from tests.support.graphs import RehearsedGraphs
from tests.support.interpreter import mend_interpreter
from tests.support.staging import LateStaging
from tests.thinker_svc.minicpmo45.language_support import CHUNK_EOS, LISTEN, SPEAK, TURN_EOS, embeddings, llm_weights
from tests.thinker_svc.minicpmo45.thinking import House, Talk, states, vocabulary_of
from thinker_svc.minicpmo45 import fused_step
from thinker_svc.minicpmo45.configuration import SessionConfig
from thinker_svc.minicpmo45.engine import MiniCpmThinkerEngine
from thinker_svc.minicpmo45.fused_step import Shape
from thinker_svc.minicpmo45.row import Row
from thinker_svc.minicpmo45.sampler import Manner, Sampling
from thinker_svc.minicpmo45.settings import MiniCpmThinkerSettings
from thinker_svc.minicpmo45.template import EMBEDDED
from thinker_svc.minicpmo45.unit import UnitRules
from torch_kit.page_table import PageTable
from torch_kit.ragged import BUCKETS, bucket
from torch_kit.staging import Staging

mend_interpreter()
HIDDEN = 32
UNIT_END, UNIT = 151_684, 151_683
FREE = -1
SCRIPT = ((SPEAK, FREE, FREE, CHUNK_EOS), (LISTEN,), (SPEAK, 66, TURN_EOS, CHUNK_EOS))


@cache
def _smallest() -> tuple[Config, dict[str, Tensor]]:
    """The interpreter is slow."""
    llm = LlmConfig(hidden_size=HIDDEN, layers=1, heads=2, kv_heads=1, head_dim=16, intermediate_size=32)
    config = msgspec.structs.replace(tiny(), llm=llm)
    return config, llm_weights(config)


def _house(checkpoint: Path, **changes: Any) -> House:
    config, weights = _smallest()
    return House(vocabulary_of(checkpoint), config=config, weights=weights, **changes)


def _talks(checkpoint: Path, graphs: RehearsedGraphs | None, *, fused: bool) -> list[Talk]:
    """Two sessions, one a unit behind the other; the fused one drafts."""
    house = _house(checkpoint, script=SCRIPT, repeat=True, stagger=1, slots=2, pages=3, fused=fused, draft=fused)
    if graphs is not None:
        house.model.graphs, house.model._staging = graphs, LateStaging()
    if house.model._fused is not None:
        house.model._fused._staging = LateStaging()
    samplings = (Sampling(greedy=True), Sampling(top_k=5))
    talks = [house.open(SessionConfig(force_listen_count=0, sampling=each), row, row) for row, each in enumerate(samplings)]
    talks[0].hear()
    house.run(talks)
    for _ in range(2):
        talks[0].hear()
        talks[1].hear()
        house.stepper.step([talks[0].slot])
        house.run(talks)
    return talks


@pytest.mark.behaviour("N48")
def test_a_fused_step_is_the_plain_one(tiny_checkpoint: Path) -> None:
    graphs = BriefGraphs()
    fused = _talks(tiny_checkpoint, graphs, fused=True)
    for ours, theirs in zip(fused, _talks(tiny_checkpoint, None, fused=False), strict=True):
        assert ours.kinds() == theirs.kinds() and ours.text() == theirs.text() and ours.log() == theirs.log()
        for mine, other in zip(ours.thoughts(), theirs.thoughts(), strict=True):
            assert mine.token_ids == other.token_ids and (not mine.token_ids or (states(mine) - states(other)).abs().max() < 1e-4)
    assert all(isinstance(key, Shape) for key in graphs.keys), "all steps are whole"
    assert {key.drafts for key in graphs.keys} == {0, 1} and {key.deciding for key in graphs.keys} == {0, 1, 2}


def test_the_engine_takes_its_kernels_from_the_settings(tiny_checkpoint: Path) -> None:
    chosen = MiniCpmThinkerSettings(checkpoint=tiny_checkpoint, slots=1, window_tokens=512, kernels="fused")
    engine = MiniCpmThinkerEngine(chosen)
    # it warms up with a unit and a token
    engine.load()
    assert engine._model._fused is not None


class BriefGraphs(RehearsedGraphs):
    """Runs blank inputs only when a key is first met."""

    def __call__(self, key: Any, function: Callable[..., Any], inputs: tuple[Tensor, ...], blank: Callable[[], tuple[Tensor, ...]]) -> Any:
        self.prepare(key, function, blank)
        self.keys.append(key)
        return function(*inputs)


class NotingGraphs(RehearsedGraphs):
    """Runs nothing."""

    def prepare(self, key: Any, function: Callable[..., Any], blank: Callable[[], tuple[Tensor, ...]]) -> None:
        self.prepared.setdefault(key, [])

    def __call__(self, key: Any, function: Callable[..., Any], inputs: tuple[Tensor, ...], blank: Callable[[], tuple[Tensor, ...]]) -> Any:
        assert [(each.shape, each.dtype) for each in inputs] == [(each.shape, each.dtype) for each in blank()]
        self.keys.append(key)
        return torch.zeros(key.deciding + key.drafts, 4, dtype=torch.int64)


@pytest.mark.parametrize("draft", [False, True])
def test_what_is_captured_at_start_is_what_is_met(draft: bool, tiny_checkpoint: Path) -> None:
    """Units of sound beside tokens of up to nine sessions, in all mixes: each has a graph of its own."""
    house = _house(tiny_checkpoint, slots=9, pages=2, fused=True)
    graphs = house.model.graphs = NotingGraphs()
    for slot in range(9):
        house.model.tune(slot, Sampling(greedy=slot == 3), UnitRules(), 0)
    house.model.warm_up(9, 2, draft=draft)
    for units in range(10):
        for steps in range(not units, 10 - units):
            tables = [PageTable(house.pool, 2) for _ in range(units + steps)]
            rows = [_sound(slot, table, draft) for slot, table in enumerate(tables[:units])]
            rows += [Row(slot, table.append(1), np.array([65]), unit=0) for slot, table in enumerate(tables[units:], units)]
            assert [len(each) for each in house.model.step(rows)] == [1 + draft] * units + [1] * steps
            for table in tables:
                table.release()
    met = set(graphs.keys)
    assert met <= set(graphs.prepared) and {(key.tokens, key.deciding) for key in met} >= {
        (bucket(count), bucket(count)) for count in range(1, 10)
    }
    # what is left is for prefixes and pictures: one for each number of tokens at most
    assert len(set(graphs.prepared) - met) <= len(BUCKETS)


@pytest.mark.behaviour("N48")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    counts=st.lists(st.one_of(st.integers(1, 16), st.integers(1, BUCKETS[-1] // 5)), min_size=1, max_size=5),
    kinds=st.lists(st.sampled_from(["none", "opens", "drafts", "goes on"]), min_size=5, max_size=5),
    draft=st.booleans(),
)
def test_no_step_waits_for_a_capture(counts: list[int], kinds: list[str], draft: bool, tiny_checkpoint: Path) -> None:
    """Prefixes, pictures, units that are made to listen, ends of units, beside those that decide: whatever comes, a graph is there."""
    house = _captured(tiny_checkpoint, draft)
    graphs = house.model.graphs = NotingGraphs()
    tables = [PageTable(house.pool, 12) for _ in counts]
    rows = []
    for slot, (count, kind, table) in enumerate(zip(counts, kinds, tables, strict=False)):
        count = 1 if kind == "goes on" else max(count, 2) if kind == "drafts" else count
        ids = np.full(count, 65)
        drafts = kind == "drafts" and draft
        rows.append(Row(slot, table.append(count), ids, (), -1 if kind == "none" else 0, None if kind == "goes on" else False, drafts))
    try:
        made = house.model.step(rows)
        assert [len(each) for each in made] == [0 if row.unit < 0 else 1 + row.draft for row in rows]
        assert house.model._fused is not None and set(graphs.keys) <= house.model._fused.shapes(5, 13, Manner.NARROW, draft=draft)
    finally:
        for table in tables:
            table.release()


@cache
def _captured(checkpoint: Path, draft: bool) -> House:
    """Of five sessions, of whom one draws nothing."""
    house = _house(checkpoint, slots=5, pages=12, fused=True)
    house.model.tune(0, Sampling(greedy=True), UnitRules(), 0)
    for slot in range(1, 5):
        house.model.tune(slot, Sampling(), UnitRules(), 0)
    house.model.graphs = NotingGraphs()
    house.model.warm_up(5, 12, draft=draft)
    return house


def test_a_larger_graph_says_the_same(tiny_checkpoint: Path) -> None:
    """More places for rows that decide, for drafts and for tiles than there are."""
    found = []
    for held in (None, Shape(16, 8, 2, 2, Manner.NARROW)):
        house = _house(tiny_checkpoint, slots=2, pages=2, fused=True)
        house.model.graphs = graphs = BriefGraphs()
        house.model.tune(0, Sampling(), UnitRules(), 7)
        assert house.model._fused is not None
        if held is not None:
            house.model._fused.prepare(graphs, held)
        table = PageTable(house.pool, 2)
        ids = np.array([UNIT, *[EMBEDDED] * 10, SPEAK])
        sound = (embeddings(HIDDEN, "audio", 0),)
        drafted = house.model.step([Row(0, table.append(12), ids, sound, unit=0, opens=False, draft=True)])
        other = PageTable(house.pool, 2)
        listens = house.model.step([Row(0, other.append(11), ids[:-1], sound)])
        found.append((drafted, listens, house.model.units.step.tolist(), house.pool.storage[:, table.pages].clone()))
        assert held is None or set(graphs.keys) == {held}
    assert found[0][:3] == found[1][:3]
    assert torch.equal(found[0][3].isnan(), found[1][3].isnan()) and (found[0][3] - found[1][3]).nan_to_num().abs().max() < 1e-6


def test_a_step_that_fails_has_drawn_nothing(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory for the answer: the same step again is as if it were the first."""
    found = []
    take = Staging.take
    for fails in (True, False):
        house, table = _house(tiny_checkpoint, slots=1, pages=2, fused=True), None
        house.model.tune(0, Sampling(), UnitRules(), 3)
        table = PageTable(house.pool, 2)
        made = []
        for step, ids in enumerate(([UNIT, 65, 66], [SPEAK], [67])):

            def row(ids: list[int] = ids, table: PageTable = table, step: int = step) -> Row:
                return Row(0, table.append(len(ids)), np.array(ids), (), unit=0, opens=None if step else False)

            if fails:
                monkeypatch.setattr(Staging, "take", _without_answer)
                with pytest.raises(torch.OutOfMemoryError):
                    house.model.step([row()])
                monkeypatch.setattr(Staging, "take", take)
                table.rewind(len(ids))
            made += house.model.step([row()])
        sampler = house.model.sampler.tables
        found.append((made, house.model.units.step.tolist(), int(sampler.drawn[0]), sampler.history[0, : int(sampler.drawn[0])].tolist()))
    assert found[0] == found[1] and found[0][1][0] == 3


def _without_answer(staging: Staging, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if name == "answer":
        raise torch.OutOfMemoryError("no memory that can be pinned")
    return torch.empty(shape, dtype=dtype)


def _sound(slot: int, table: PageTable, draft: bool) -> Row:
    ids = np.array([CHUNK_EOS, UNIT_END, UNIT, *[EMBEDDED] * 10, *[SPEAK] * draft])
    return Row(slot, table.append(len(ids)), ids, (torch.zeros(10, HIDDEN),), unit=0, opens=True, draft=draft)


@pytest.mark.behaviour("N45")
def test_a_step_beyond_the_largest_bucket_runs_without_a_graph(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Embeddings of one that fits and of one that does not, and rows that give too few."""
    monkeypatch.setattr(fused_step, "BUCKETS", (1, 2, 4, 8, 16))
    found = []
    for fused in (True, False):
        house = _house(tiny_checkpoint, slots=1, pages=2, fused=fused)
        graphs, table = RehearsedGraphs(), PageTable(house.pool, 2)
        house.model.graphs = graphs if fused else house.model.graphs
        house.model.tune(0, Sampling(greedy=True), UnitRules(), 1)
        sounds = [embeddings(HIDDEN, "audio", number) for number in (0, 1)]
        house.model.step([Row(0, table.append(11), np.array([UNIT, *[EMBEDDED] * 10]), tuple(sounds[:1]))])
        ids = np.array([UNIT, *[EMBEDDED] * 10, 65, *[EMBEDDED] * 10])
        found.append(house.model.step([Row(0, table.append(22), ids, tuple(sounds), unit=0, opens=False)]))
        assert len(graphs.keys) == fused
        with pytest.raises(ValueError, match="embeddings: 10 for 20 places"):
            house.model.step([Row(0, table.append(22), ids, tuple(sounds[:1]), unit=0, opens=False)])
    assert found[0] == found[1]
