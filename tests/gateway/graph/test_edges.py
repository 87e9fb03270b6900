"""The ledger of edges against a plain model, with restores anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.graph import Edges, EdgesState, Graph, load_profile

EMBEDDED = (Path(__file__).parents[3] / "profiles" / "embedded.yaml").read_text(encoding="utf-8")
GRAPH = Graph(load_profile(EMBEDDED, "embedded"))
FANNED = Graph(
    load_profile(
        EMBEDDED.replace("publish:", "  aligner:\n    stages: [aligner]\n    inputs: ['llm:text', vocoder]\npublish:").replace(
            'inputs: ["llm:text"]', 'inputs: [{source: "llm:text", capacity: 4}]'
        ),
        "fanned",
    )
)


def restored(edges: Edges, graph: Graph = GRAPH) -> Edges:
    return Edges(graph, msgspec.msgpack.decode(msgspec.msgpack.encode(edges.state), type=EdgesState))


def test_previous_is_the_position_before_on_the_edge() -> None:
    edges = Edges(GRAPH)
    assert [edges.sent("llm", "talker", position) for position in (1, 2, 5, 9)] == [0, 1, 2, 5]
    assert edges.sent("llm", "talker", 5) == 2, "sent again"
    edges.accepted("talker", {"llm": 5})
    assert edges.sent("llm", "talker", 9) == 5
    assert edges.in_flight("llm", "talker") == 1


def test_a_position_without_a_reader_counts_as_had() -> None:
    edges = Edges(GRAPH)
    assert edges.acknowledgeable("vocoder", 7) == 7
    edges.sent("llm", "talker", 3)
    assert edges.acknowledgeable("llm", 6) == 2
    edges.accepted("talker", {"llm": 3})
    assert edges.acknowledgeable("llm", 6) == 6


def test_the_slowest_reader_and_the_core_bound_what_is_forgotten() -> None:
    edges = Edges(FANNED)
    for position in (1, 2, 3):
        edges.sent("llm", "talker", position)
        edges.sent("llm", "aligner", position)
    edges.accepted("talker", {"llm": 3})
    assert edges.acknowledgeable("llm", 3) == 0
    edges.accepted("aligner", {"llm": 2})
    assert edges.acknowledgeable("llm", 3) == 2
    edges.accepted("aligner", {"llm": 3})
    assert edges.acknowledgeable("llm", 2) == 2
    assert edges.acknowledged("llm") == 2


def test_a_full_edge_holds_its_source_until_the_reader_accepts() -> None:
    edges = Edges(FANNED)
    for position in range(1, 5):
        assert not edges.held("llm")
        edges.sent("llm", "talker", position)
    assert edges.held("llm")
    edges.accepted("talker", {"llm": 1})
    assert not edges.held("llm") and not edges.held("nobody")


def test_a_full_edge_that_drops_never_holds_and_forgets_the_oldest() -> None:
    text = EMBEDDED.replace("inputs: [input, turn]", "inputs: [{source: input, capacity: 2, overflow: drop_oldest}, turn]")
    edges = Edges(Graph(load_profile(text, "dropping")))
    for position in range(1, 6):
        edges.sent("client", "asr", position)
    assert edges.in_flight("client", "asr") == 2 and not edges.held("client")
    assert edges.acknowledgeable("client", 5) == 3


def test_what_is_unknown_changes_nothing() -> None:
    edges = Edges(GRAPH)
    edges.accepted("talker", {"turn": 4, "nobody": 2, "llm": 0})
    edges.accepted("nobody", {"llm": 4})
    assert edges.state == EdgesState()


def test_a_restored_ledger_reads_on_from_what_was_acknowledged() -> None:
    edges = Edges(GRAPH)
    for position in (1, 2, 3):
        edges.sent("llm", "talker", position)
    edges.accepted("talker", {"llm": 1})
    edges.acknowledgeable("llm", 3)
    again = restored(edges)
    assert again.acknowledged("llm") == 1
    assert [again.sent("llm", "talker", position) for position in (2, 3)] == [1, 2]
    again.accepted("talker", {"llm": 3})
    assert again.acknowledgeable("llm", 3) == 3


class Ledger(RuleBasedStateMachine):
    """Two readers of one source, one of whom skips some of it, against sets of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.edges = Edges(FANNED)
        self.made = self.consumed = self.highest = 0
        self.sent: dict[str, list[int]] = {"talker": [], "aligner": []}
        self.had = {"talker": 0, "aligner": 0}

    @precondition(lambda self: not self.edges.held("llm"))
    @rule(to_talker=st.booleans(), to_aligner=st.booleans())
    def make(self, to_talker: bool, to_aligner: bool) -> None:
        self.made += 1
        for reader, goes in (("talker", to_talker), ("aligner", to_aligner)):
            if goes:
                before = self.edges.sent("llm", reader, self.made)
                assert before <= self.made - 1
                assert before == max([self.had[reader], *(p for p in self.sent[reader] if p < self.made)])
                self.sent[reader].append(self.made)

    @precondition(lambda self: self.made)
    @rule(data=st.data(), reader=st.sampled_from(["talker", "aligner"]))
    def accept(self, data: st.DataObject, reader: str) -> None:
        watermark = data.draw(st.sampled_from([0, *self.sent[reader]]))
        self.edges.accepted(reader, {"llm": watermark})
        self.had[reader] = max(self.had[reader], watermark)

    @rule(data=st.data())
    def consume(self, data: st.DataObject) -> None:
        self.consumed = data.draw(st.integers(self.consumed, self.made))

    @rule()
    def restore(self) -> None:
        self.edges = restored(self.edges, FANNED)

    @rule()
    def send_again(self) -> None:
        before = msgspec.msgpack.encode(self.edges.state)
        for reader, positions in self.sent.items():
            for position in positions:
                self.edges.sent("llm", reader, position)
        assert msgspec.msgpack.encode(self.edges.state) == before

    @invariant()
    def acknowledges_exactly_what_all_have(self) -> None:
        missing = [position for reader, positions in self.sent.items() for position in positions if position > self.had[reader]]
        expected = min([self.consumed, *(position - 1 for position in missing)])
        assert self.edges.acknowledgeable("llm", self.consumed) == expected
        assert expected >= self.highest
        self.highest = expected

    @invariant()
    def bounds_what_is_in_flight(self) -> None:
        waiting = [position for position in self.sent["talker"] if position > self.had["talker"]]
        assert self.edges.in_flight("llm", "talker") == len(waiting) <= 4
        assert self.edges.held("llm") == (len(waiting) == 4)


TestLedger: Any = Ledger.TestCase
TestLedger.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60), st.integers(0, 60)), max_size=40))
def test_never_goes_down_whatever_the_order(steps: list[tuple[int, int, int]]) -> None:
    edges, last = Edges(GRAPH), 0
    for position, watermark, consumed in steps:
        edges.sent("llm", "talker", position)
        edges.accepted("talker", {"llm": watermark})
        now = edges.acknowledgeable("llm", consumed)
        assert now >= last
        last = now


@pytest.mark.parametrize("watermark", [0, 3, 2])
def test_a_lower_watermark_changes_nothing(watermark: int) -> None:
    edges = Edges(GRAPH)
    edges.sent("llm", "talker", 4)
    edges.accepted("talker", {"llm": 3})
    edges.accepted("talker", {"llm": watermark})
    assert edges.watermark("llm", "talker") == 3
