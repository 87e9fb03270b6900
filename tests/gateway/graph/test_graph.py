"""What the core asks a graph: the shipped one, and shapes that other deployments need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.graph import AlignmentOptions, Control, Edges, Graph, Profile

Document = dict[str, Any]
Load = Callable[[Document], Profile]


def test_embedded_stages_open_upstream_first(embedded: Graph) -> None:
    assert embedded.stages == ("turn", "asr", "llm", "talker", "vocoder")
    assert embedded.response_stages == ("llm", "talker", "vocoder")


def test_embedded_routes_as_the_documents_say(embedded: Graph) -> None:
    assert embedded.readers("client", "audio") == ("turn", "asr")
    assert embedded.readers("turn", "decision") == ("asr",)
    assert "asr" in embedded.readers("core", "control")
    assert embedded.readers("core", "messages") == ("llm",)
    assert embedded.readers("llm", "text") == ("talker",)
    assert embedded.readers("llm", "tool") == ()
    assert embedded.readers("talker", "latents") == ("vocoder",)
    assert embedded.readers("vocoder", "audio") == embedded.readers("asr", "transcript") == embedded.readers("nobody", "text") == ()


def test_embedded_names_who_does_what(embedded: Graph) -> None:
    assert (embedded.decision_stage, embedded.transcript_stage, embedded.text_stage) == ("turn", "asr", "llm")
    assert (embedded.audio_stage, embedded.progress_stage, embedded.last_stage) == ("vocoder", "vocoder", "vocoder")
    assert embedded.dialog is not None and embedded.dialog.max_text_chars == 16_000


def test_embedded_edges_by_reader(embedded: Graph) -> None:
    assert embedded.edges("turn") == ("client", "core")
    assert set(embedded.edges("asr")) == {"client", "core", "turn"}
    assert embedded.edges("talker") == ("llm",)
    assert embedded.edges("nobody") == ()
    assert [stage for stage in embedded.stages if embedded.reads_core(stage)] == ["turn", "asr", "llm"]


@pytest.mark.parametrize(
    ("source", "kind", "reader", "lane"),
    [
        ("client", "audio", "turn", "input"),
        ("client", "audio", "asr", "input"),
        ("core", "control", "asr", "input"),
        ("turn", "decision", "asr", "input"),
        ("core", "messages", "llm", "response"),
        ("llm", "text", "talker", "response"),
        ("core", "control", "talker", "response"),
        ("talker", "latents", "vocoder", "response"),
    ],
)
def test_lanes(embedded: Graph, source: str, kind: str, reader: str, lane: str) -> None:
    assert embedded.lane(source, kind, reader) == lane


def test_what_the_client_and_the_dialog_get(embedded: Graph) -> None:
    published = {(stage, kind) for stage in (*embedded.stages, "core") for kind in KINDS if embedded.publishes(stage, kind)}
    assert published == {
        ("turn", "decision"),
        ("asr", "transcript"),
        ("core", "session"),
        ("llm", "text"),
        ("llm", "tool"),
        ("vocoder", "audio"),
    }
    assert embedded.core_reads("llm", "text") and embedded.core_reads("asr", "transcript") and not embedded.core_reads("talker", "latents")


KINDS = ("audio", "image", "text", "transcript", "messages", "thought", "codes", "latents", "tool", "control", "decision", "session")


def test_control_edges_reach_the_dialog(embedded: Graph) -> None:
    assert embedded.controls("client", "interrupt") == (Control("core", False),)
    assert embedded.controls("vocoder", "reply.progress") == (Control("core", False),)
    assert embedded.controls("client", "commit") == ()


def test_a_preempting_interrupt_is_told_to_its_target_alone(document: Document, load: Load) -> None:
    document["nodes"]["talker"]["inputs"].append({"kind": "control", "source": "input", "event": "interrupt", "preempt": True})
    graph = Graph(load(document))
    assert graph.controls("client", "interrupt") == (Control("talker", True), Control("core", False))


@pytest.mark.behaviour("G36")
def test_one_output_fans_out_and_reaches_every_reader(document: Document, load: Load) -> None:
    document["nodes"]["aligner"] = {"kind": "alignment", "inputs": ["llm:text", "vocoder"]}
    document["nodes"]["dialog"]["inputs"][-1]["source"] = "aligner"
    graph = Graph(load(document))
    assert graph.readers("llm", "text") == ("talker", "aligner")
    assert graph.readers("vocoder", "audio") == ("aligner",)
    assert graph.progress_stage == "aligner" and graph.last_stage == "vocoder"
    assert graph.response_stages == ("llm", "talker", "vocoder", "aligner")
    assert graph.lane("vocoder", "audio", "aligner") == "response"
    options = graph.options("aligner")
    assert isinstance(options, AlignmentOptions) and options.timeout_ms == 2000
    assert graph.options("llm") is None


@pytest.mark.behaviour("G36")
def test_a_feedback_edge_closes_a_cycle_of_stages(document: Document, load: Load) -> None:
    """A tool stage runs what the model calls; its answers go back to the model."""
    document["stages"] = {
        "llm": {"reads": ["messages", "tool"], "requires": ["messages"]},
        "runner": {"reads": ["tool"], "makes": ["tool"]},
    }
    document["nodes"]["runner"] = {"stages": ["runner"], "inputs": ["llm:tool"]}
    document["nodes"]["llm"]["inputs"].append({"source": "runner", "overflow": "drop_oldest", "feedback": True})
    document["nodes"]["dialog"]["inputs"][2]["source"] = "llm:text"
    graph = Graph(load(document))
    assert graph.readers("llm", "tool") == ("runner",) and graph.readers("runner", "tool") == ("llm",)
    assert graph.stages.index("llm") < graph.stages.index("runner")
    assert "runner" in graph.response_stages and "turn" not in graph.response_stages
    edges = Edges(graph)
    assert edges.sent("llm", "runner", 1) == 0 and edges.sent("runner", "llm", 1) == 0
    assert edges.acknowledgeable("llm", 1) == 0
    edges.accepted("runner", {"llm": 1})
    assert edges.acknowledgeable("llm", 1) == 1


NATIVE: Document = {
    "model": "duplex",
    "nodes": {
        "turn": {"stages": ["turn"], "inputs": ["input"]},
        "duplex": {"stages": ["thinker", "talker", "vocoder"], "inputs": ["input", "turn"]},
    },
    "publish": {"turn": ["decision"], "duplex": ["text", "audio", "decision"]},
}


def test_a_native_model_is_a_chain_beside_the_detector(load: Load) -> None:
    graph = Graph(load(NATIVE))
    assert graph.stages == ("turn", "thinker", "talker", "vocoder")
    assert graph.dialog is None
    assert (graph.text_stage, graph.audio_stage, graph.decision_stage) == ("thinker", "vocoder", "turn")
    assert graph.response_stages == ("thinker", "talker", "vocoder")
    assert graph.readers("camera", "image") == ("thinker",)
    assert graph.readers("thinker", "thought") == ("talker",) and graph.readers("thinker", "text") == ("talker",)
    assert graph.readers("talker", "codes") == ("vocoder",)


@pytest.mark.parametrize(
    ("source", "kind", "reader", "lane"),
    [
        ("client", "audio", "thinker", "input"),
        ("core", "control", "thinker", "input"),
        ("turn", "decision", "thinker", "input"),
        ("thinker", "thought", "talker", "response"),
    ],
)
def test_a_native_unit_comes_by_the_input_lane_and_leaves_by_the_other(load: Load, source: str, kind: str, reader: str, lane: str) -> None:
    assert Graph(load(NATIVE)).lane(source, kind, reader) == lane


def test_a_text_only_graph_ends_with_its_text(document: Document, load: Load) -> None:
    for name in ("talker", "vocoder"):
        del document["nodes"][name]
    del document["publish"]["vocoder"]
    document["nodes"]["dialog"]["inputs"].pop()
    graph = Graph(load(document))
    assert (graph.audio_stage, graph.progress_stage, graph.last_stage) == ("", "", "llm")


def test_the_order_of_the_text_does_not_matter_to_the_order_of_opening(document: Document, load: Load) -> None:
    document["nodes"] = dict(reversed(document["nodes"].items()))
    stages = Graph(load(document)).stages
    pairs = [("turn", "asr"), ("asr", "llm"), ("llm", "talker"), ("talker", "vocoder")]
    assert all(stages.index(above) < stages.index(below) for above, below in pairs)


def test_an_edge_has_its_own_bound(document: Document, load: Load) -> None:
    document["nodes"]["talker"]["inputs"] = [{"source": "llm:text", "capacity": 3}]
    document["nodes"]["asr"]["inputs"] = ["input:pcm16", "input:control", {"source": "turn", "overflow": "drop_oldest"}]
    document["limits"] = {"edge_capacity_positions": 9}
    bounds = {(edge.source, edge.reader): (edge.capacity, edge.overflow) for edge in Graph(load(document)).all_edges}
    assert bounds["llm", "talker"] == (3, "block")
    assert bounds["turn", "asr"] == (9, "drop_oldest")
    assert bounds["client", "asr"] == (9, "block")
