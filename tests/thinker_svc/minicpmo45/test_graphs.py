"""Steps from graphs against plain ones: the same sessions, the same tokens and states, whatever pads the batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.graphs import RehearsedGraphs
from tests.thinker_svc.minicpmo45.language_support import CHUNK_EOS, SPEAK
from tests.thinker_svc.minicpmo45.thinking import House, Talk, states, vocabulary_of
from thinker_svc.minicpmo45.configuration import SessionConfig
from thinker_svc.minicpmo45.sampler import Sampling
from thinker_svc.minicpmo45.window import WindowRules

FREE = -1
SCRIPT = ((SPEAK, FREE, FREE, FREE, CHUNK_EOS), (SPEAK, FREE, CHUNK_EOS), (SPEAK, FREE, FREE, FREE, FREE, CHUNK_EOS))
SAMPLINGS = (Sampling(greedy=True), Sampling(top_k=5), Sampling(temperature=0.4))


def _said(vocabulary_path: Path, graphs: RehearsedGraphs | None) -> list[Talk]:
    house = House(vocabulary_of(vocabulary_path), script=SCRIPT, repeat=True, stagger=1, slots=3)
    if graphs is not None:
        house.model.graphs = graphs
    talks = [
        house.open(SessionConfig(force_listen_count=0, sampling=sampling, window=WindowRules("basic", 90, 50)), seed=row, row=row)
        for row, sampling in enumerate(SAMPLINGS)
    ]
    for _ in range(6):
        for talk in talks:
            talk.hear()
        house.run(talks)
    return talks


@pytest.mark.behaviour("N48")
def test_steps_from_graphs_are_plain_steps(tiny_checkpoint: Path) -> None:
    graphs = RehearsedGraphs()
    for plain, fast in zip(_said(tiny_checkpoint, None), _said(tiny_checkpoint, graphs), strict=True):
        assert plain.kinds() == fast.kinds() and plain.text() == fast.text()
        for ours, theirs in zip(fast.thoughts(), plain.thoughts(), strict=True):
            assert ours.token_ids == theirs.token_ids and (states(ours) - states(theirs)).abs().max() < 1e-5
    steps = [key for key in graphs.keys if key[0] == "step"]
    assert {key[1] for key in steps} == {1, 2, 4} and {key[3] for key in steps} == {False, True}
    assert {key[1] for key in graphs.keys if key[0] == "decide"} <= {1, 2, 4}


def test_what_is_captured_at_start_is_what_is_met(tiny_checkpoint: Path) -> None:
    house = House(vocabulary_of(tiny_checkpoint), script=SCRIPT, repeat=True, slots=3)
    graphs = house.model.graphs = RehearsedGraphs()
    house.model.warm_up(3, 8)
    before = set(graphs.prepared)
    talks = [house.open(SessionConfig(force_listen_count=0), seed=row, row=row) for row in range(3)]
    for _ in range(3):
        for talk in talks:
            talk.hear()
        house.run(talks)
    assert len({key[0] for key in graphs.keys}) == 2 and set(graphs.keys) <= before
