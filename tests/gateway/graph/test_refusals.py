"""Every rule that a profile is refused for, with its message. The ids after "V:" are the rules of the matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.graph import Profile, ProfileError

Document = dict[str, Any]
Spoil = Callable[[Document], object]

FEEDBACK = {"source": "llm", "overflow": "drop_oldest", "feedback": True}
ALIGNER = {"stages": ["aligner"], "inputs": ["llm:text", "vocoder"]}
CHAT = {"kind": "openai_chat", "inputs": ["dialog"], "base_url": "https://chat.example/v1", "model": "m"}
CONTROL = {"kind": "control"}


def put(name: str, **fields: Any) -> Spoil:
    """Set fields of a node; None takes one away."""

    def spoil(document: Document) -> None:
        node = document["nodes"].setdefault(name, {})
        node.update(fields)
        for field in [field for field, value in fields.items() if value is None]:
            del node[field]

    return spoil


def read(name: str, *items: Any) -> Spoil:
    """More inputs for a node."""
    return lambda document: document["nodes"][name]["inputs"].extend(items)


def publish(**formats: Any) -> Spoil:
    """Publish these of a node; None takes the node out."""

    def spoil(document: Document) -> None:
        document["publish"].update(formats)
        for name in [name for name, value in formats.items() if value is None]:
            del document["publish"][name]

    return spoil


def both(*spoils: Spoil) -> Spoil:
    return lambda document: [spoil(document) for spoil in spoils]


def align(**options: Any) -> Spoil:
    return put("aligner", kind="alignment", inputs=["llm:text", "vocoder"], **options)


def row(rule: str, message: str, *spoils: Spoil) -> Any:
    return pytest.param(message, both(*spoils), id=f"{rule}-{message[:40]}", marks=pytest.mark.behaviour(f"V:{rule}"))


ROWS = [
    row("both/neither stages and kind", "a session node names either stages or a kind", put("llm", kind="openai_chat")),
    row("both/neither stages and kind", "a session node names either stages or a kind", put("llm", stages=None)),
    row("options beside stages", "options ['base_url', 'model'] belong to a node of a kind", put("llm", base_url="http://a", model="m")),
    row("unknown kind", "unknown component kind 'telepathy'", put("oracle", kind="telepathy", inputs=["dialog"])),
    row("extra option / missing option", "Extra inputs are not permitted", put("dialog", temper="mild")),
    row("extra option / missing option", "Extra inputs are not permitted", read("talker", {"source": "turn", "speed": 1})),
    row("extra option / missing option", "Field required", put("llm", stages=None, kind="openai_chat", model="m")),
    row("node name", "String should match pattern '^[a-z][a-z0-9_]*$'", lambda d: d["nodes"].update({"LLM 2": d["nodes"]["llm"]})),
    row("node called input", "'input' names the session input, not a node", put("input", stages=["turn"], inputs=["input"])),
    row("nobody reads input", "no node reads 'input'", put("turn", inputs=[]), put("asr", inputs=["turn"])),
    row("self read", "node 'asr' reads itself", read("asr", "asr")),
    row("unknown input", "node 'talker' reads unknown inputs ['brain', 'heart']", read("talker", "brain", "heart:text")),
    row("format mismatch", "node 'talker' cannot take ['turn:decision']", read("talker", "turn")),
    row("format mismatch", "node 'vocoder' cannot take ['llm:text']", read("vocoder", "llm:text")),
    row("format mismatch", "node 'talker' cannot take ['input:commit']", read("talker", CONTROL | {"source": "input", "event": "commit"})),
    row("required format missing", "no input of node 'talker' produces ['text', 'thought']", put("talker", inputs=[])),
    row("required format missing", "no input of node 'dialog' produces ['transcript']", put("dialog", inputs=["turn", FEEDBACK])),
    row(
        "cycle",
        "nodes ['dialog', 'llm'] form a cycle of data edges; declare the input that closes it with feedback: true",
        put("dialog", inputs=["asr", "llm"]),
    ),
    row(
        "feedback blocks",
        "the feedback edge from 'llm' into 'dialog' must not block",
        put("dialog", inputs=["asr", FEEDBACK | {"overflow": "block"}]),
    ),
    row(
        "feedback blocks",
        "the feedback edge from 'llm' into 'dialog' must not block",
        put("dialog", inputs=["asr", {"source": "llm", "feedback": True}]),
    ),
    row(
        "two bounds",
        "node 'asr' bounds its edge from 'input' twice",
        put("asr", inputs=[{"source": "input:audio", "capacity": 8}, {"source": "input:control", "overflow": "drop_oldest"}]),
    ),
    row(
        "two progress sources",
        "node 'dialog' takes reply.progress from ['vocoder', 'aligner']; one source reports it",
        lambda d: d["nodes"].update(aligner=ALIGNER),
        read("dialog", CONTROL | {"source": "aligner", "event": "reply.progress"}),
    ),
    row(
        "two progress sources",
        "node 'dialog' takes reply.progress from ['aligner', 'vocoder']; one source reports it",
        lambda d: d["nodes"].update(aligner=ALIGNER),
        read("dialog", {"source": "aligner:reply.progress", "overflow": "drop_oldest", "feedback": True}),
    ),
    row(
        "progress as data and control",
        "node 'dialog' reads ['vocoder:reply.progress'] as data, but a control edge takes them",
        read("dialog", {"source": "vocoder:reply.progress", "overflow": "drop_oldest", "feedback": True}),
    ),
    row("publish unknown / not produced", "publish names unknown nodes ['brain']", publish(brain=["text"])),
    row("publish unknown / not produced", "node 'vocoder' does not produce ['latents']", publish(vocoder=["audio", "latents"])),
    row(
        "publish unknown / not produced", "node 'vocoder' does not produce ['reply.progress']", publish(vocoder=["audio", "reply.progress"])
    ),
    row("no turn end published / two", "no published node ends turns", publish(vocoder=None, llm=None)),
    row(
        "no turn end published / two",
        "turns end twice: ['vocoder', 'speaker'] all publish turn.done",
        lambda d: d.update(stages={"speaker": {"reads": ["text"], "makes": ["audio"], "ends_turns": True}}),
        put("speaker", stages=["speaker"], inputs=["llm:text"]),
        publish(speaker=["audio"]),
    ),
    row("dialog not published", "nodes ['dialog'] open turns and must publish 'session'", publish(dialog=None)),
    row("stage route unknown", "no stage group serves the stages ['oracle']", put("llm", stages=["oracle"])),
    row("stage route unknown", "no stage group serves the stages ['talker', 'llm']", put("talker", stages=["talker", "llm"])),
    row(
        "base_url scheme",
        "String should match pattern '^https?://'",
        lambda d: d["nodes"].update(llm=CHAT | {"base_url": "ftp://chat.example"}),
    ),
    row("aligner", "the forced method needs alignment_url", align(method="forced")),
    row("aligner", "alignment_url belongs to the forced method", align(alignment_url="http://align.example")),
    row("aligner", "heard_asr_url and heard_asr_model go together", align(heard_asr_url="http://asr.example")),
    row("aligner", "the asr method needs heard_asr_url and heard_asr_model", align(method="asr", heard_asr_url="http://asr.example")),
    row("aligner", "heard_asr_url belongs to the asr and forced methods", align(heard_asr_url="http://asr.example", heard_asr_model="m")),
    row(
        "chat extra_body",
        "extra_body cannot set ['stream', 'model']",
        lambda d: d["nodes"].update(llm=CHAT | {"extra_body": {"stream": 1, "model": 2, "seed": 3}}),
    ),
]

OURS = [
    (
        "node 'asr' takes audio from ['input', 'vocoder']; one source sends it",
        read("asr", {"source": "vocoder", "overflow": "drop_oldest", "feedback": True}),
    ),
    ("nodes ['asr', 'again'] share the stage 'asr'; one node may hold it", put("again", stages=["asr"], inputs=["input"])),
    ("node 'llm' does not produce ['audio']", put("talker", inputs=["llm:audio"])),
    ("node 'input' does not produce ['reply.progress']", read("dialog", CONTROL | {"source": "input", "event": "reply.progress"})),
    (
        "'core' names a source of edges, not a stage",
        both(lambda d: d.update(stages={"core": {"reads": ["text"]}}), put("llm", stages=["core"])),
    ),
    ("7 nodes exceed max_nodes 6", both(lambda d: d.update(limits={"max_nodes": 6}), lambda d: d["nodes"].update(aligner=ALIGNER))),
    ("max_text_chars exceeds max_history_chars", put("dialog", max_history_chars=10, max_text_chars=11)),
    ("Input should be a valid list", put("llm", inputs="dialog")),
    ("Input should be a valid integer", lambda d: d.update(pacing={"max_output_lead_ms": True})),
    ("Input should be greater than or equal to 1", read("talker", {"source": "turn", "capacity": 0})),
    ("Input should be a valid list", lambda d: d["nodes"].update(llm={"stages": "llm", "inputs": []})),
]


def refusal(load: Callable[[Document], Profile], document: Document) -> ProfileError:
    with pytest.raises(ProfileError) as caught:
        load(document)
    return caught.value


@pytest.mark.parametrize(("message", "spoil"), ROWS)
def test_a_rule_of_the_matrix_refuses_with_its_message(
    message: str, spoil: Spoil, document: Document, load: Callable[[Document], Profile]
) -> None:
    spoil(document)
    assert message in refusal(load, document).messages


@pytest.mark.parametrize(("message", "spoil"), OURS, ids=[message[:50] for message, _ in OURS])
def test_what_else_cannot_be_meant_is_refused(message: str, spoil: Spoil, document: Document, load: Callable[[Document], Profile]) -> None:
    spoil(document)
    assert message in refusal(load, document).messages


@pytest.mark.behaviour("G36")
def test_all_that_is_wrong_is_told_at_once_with_its_place(document: Document, load: Callable[[Document], Profile]) -> None:
    put("llm", base_url="http://a")(document)
    put("oracle", kind="telepathy")(document)
    document["pacing"]["max_output_lead_ms"] = "long"
    problems = refusal(load, document).problems
    assert {problem.path for problem in problems} == {"nodes.llm", "nodes.oracle.kind", "pacing.max_output_lead_ms"}


def test_topology_is_told_at_once_too(document: Document, load: Callable[[Document], Profile]) -> None:
    read("talker", "brain")(document)
    publish(brain=["text"], dialog=None)(document)
    error = refusal(load, document)
    assert [problem.path for problem in error.problems] == ["nodes.talker.inputs", "publish", "publish"]
    assert str(error).startswith("profile 'spoilt' is refused: nodes.talker.inputs: node 'talker' reads unknown inputs ['brain']; ")


def test_a_refusal_repeats_no_value(document: Document, load: Callable[[Document], Profile]) -> None:
    put("dialog", system_prompt=["secret words"])(document)
    assert "secret" not in str(refusal(load, document))
