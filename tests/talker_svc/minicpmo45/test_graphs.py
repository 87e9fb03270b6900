"""Codes from graphs against plain ones: three sessions that come and go, in batches padded to four."""

from __future__ import annotations

from pathlib import Path

import pytest

from stage_kit import Label
from talker_svc.minicpmo45.engine import MiniCpmTalkerEngine
from tests.support.graphs import RehearsedGraphs
from tests.talker_svc.minicpmo45.support.harness import Talk, engine, payload, run

TURN = Label(epoch=0, turn=1, response_id="t1")
CONFIGS = ({}, {"greedy": True}, {"temperature": 0.5, "repetition_penalty": 1.4})


def _codes(talker: MiniCpmTalkerEngine) -> list[list[list[int]]]:
    talks = [Talk(talker, f"session {number}", **config) for number, config in enumerate(CONFIGS)]
    for unit in range(3):
        for number, talk in enumerate(talks):
            talk.say(TURN, payload(2 + number, 10 * unit + number, turn_end=unit == 2), last=unit == 2)
            run(talker, *talks[: number + 1], steps=5)
        run(talker, *talks)
    for talk in talks:
        talker.close(talk.slot)
    return [talk.codes(TURN) for talk in talks]


@pytest.mark.behaviour("N48")
def test_codes_from_graphs_are_plain_codes(tiny_checkpoint: Path) -> None:
    talker = engine(tiny_checkpoint, slots=3, tail_codes=30)
    plain = _codes(talker)
    graphs = RehearsedGraphs()
    talker._graphs = graphs
    assert _codes(talker) == plain
    assert {key[0] for key in graphs.keys} == {1, 2, 4}


def test_what_is_captured_at_start_is_what_is_met(tiny_checkpoint: Path) -> None:
    talker = engine(tiny_checkpoint, slots=3, tail_codes=30)
    graphs = talker._graphs = RehearsedGraphs()
    talker._warm_up()
    before = set(graphs.prepared)
    _codes(talker)
    assert graphs.keys and set(graphs.keys) <= before
