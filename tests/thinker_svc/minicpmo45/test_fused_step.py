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
from torch import Tensor

pytest.importorskip("triton")

from minicpmo45.config import Config, LlmConfig, tiny
from tests.support.graphs import RehearsedGraphs
from tests.support.interpreter import mend_interpreter
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
        house.model.graphs = graphs
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
    settings = MiniCpmThinkerSettings(checkpoint=tiny_checkpoint, slots=1, window_tokens=512, kernels="fused")
    engine = MiniCpmThinkerEngine(settings)
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

    def __call__(self, key: Any, function: Callable[..., Any], inputs: tuple[Tensor, ...], blank: Callable[[], tuple[Tensor, ...]]) -> Any:
        assert [(each.shape, each.dtype) for each in inputs] == [(each.shape, each.dtype) for each in blank()]
        self.keys.append(key)
        return torch.zeros(key.deciding + key.drafts, 4, dtype=torch.int64)


@pytest.mark.parametrize("draft", [False, True])
def test_what_is_captured_at_start_is_what_is_met(draft: bool, tiny_checkpoint: Path) -> None:
    """Units of sound beside tokens of up to nine sessions, in all mixes."""
    house = _house(tiny_checkpoint, slots=9, pages=2, fused=True)
    graphs = house.model.graphs = NotingGraphs()
    assert house.model._fused is not None
    for units in range(10):
        for steps in range(not units, 10 - units):
            tables = [PageTable(house.pool, 2) for _ in range(units + steps)]
            rows = [_sound(slot, table, draft) for slot, table in enumerate(tables[:units])]
            rows += [Row(slot, table.append(1), np.array([65]), unit=0) for slot, table in enumerate(tables[units:], units)]
            assert [len(each) for each in house.model.step(rows)] == [1 + draft] * units + [1] * steps
            for table in tables:
                table.release()
    assert {key._replace(manner=Manner.NARROW) for key in graphs.keys} == house.model._fused.shapes(9, 13, Manner.NARROW, draft=draft)


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
