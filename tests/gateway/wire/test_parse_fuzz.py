"""Whatever arrives is a command or a typed refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.conversation.commands import ClientCommand
from gateway.conversation.errors import ERRORS
from gateway.wire import WireLimits, WireRefusal, openai_ga

LIMITS = WireLimits(max_event_bytes=20_000)
FRAMES: list[str] = [
    json.dumps(event)
    for events in json.loads((Path(__file__).parents[1] / "fixtures" / "client_first_frames.json").read_text("utf-8")).values()
    for event in events
]

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20)
values = st.recursive(scalars, lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=8), children, max_size=4))


def check(frame: str | bytes) -> None:
    try:
        command = openai_ga.parse(frame, LIMITS)
    except WireRefusal as refusal:
        assert refusal.code in ERRORS
        assert refusal.client_event_id is None or 1 <= len(refusal.client_event_id) <= 512
    else:
        assert isinstance(command, ClientCommand)


@settings(max_examples=300, deadline=None)
@given(st.text() | st.binary())
@example("\ud800")
@example("\x00")
@example("{" * 100_000)
def test_any_text_or_bytes(frame: str | bytes) -> None:
    check(frame)


@settings(max_examples=300, deadline=None)
@given(values)
def test_any_json(value: Any) -> None:
    check(json.dumps(value))


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A valid event of a known client with one to three of its nodes replaced, removed, or added to."""
    event = json.loads(draw(st.sampled_from(FRAMES)))
    for _ in range(draw(st.integers(1, 3))):
        node: Any = event
        while isinstance(node, dict | list) and node:
            key = draw(st.sampled_from(sorted(node))) if isinstance(node, dict) else draw(st.integers(0, len(node) - 1))
            child = node[key]
            if isinstance(child, dict | list) and child and draw(st.booleans()):
                node = child
                continue
            match draw(st.integers(0, 2)):
                case 0:
                    node[key] = draw(values)
                case 1:
                    del node[key]
                case _ if isinstance(node, dict):
                    node[draw(st.text(max_size=8))] = draw(values)
            break
    return json.dumps(event, ensure_ascii=draw(st.booleans()))


@settings(max_examples=500, deadline=None)
@given(mutated())
def test_any_mutation_of_a_valid_event(frame: str) -> None:
    check(frame)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(FRAMES), st.data())
def test_any_cut_or_splice_of_a_valid_frame(frame: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(frame)))
    end = data.draw(st.integers(start, len(frame)))
    check(frame[:start] + data.draw(st.text(max_size=8)) + frame[end:])
