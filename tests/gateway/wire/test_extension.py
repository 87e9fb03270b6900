"""What our own client hears beyond the GA dialect."""

from __future__ import annotations

import json

from gateway.conversation import events
from gateway.wire import extension, openai_ga

DELTA = events.AudioDelta("resp_x_1", "item_a_x_1", 0, b"\x00\x00")


def test_a_muted_event_leaves_its_place_in_the_count_to_the_word_that_stands_for_it() -> None:
    view = openai_ga.SessionView("sess_x")
    numbered = [json.loads(openai_ga.render(DELTA, 7, view)), json.loads(extension.skipped(view, 7))]
    assert {event["event_id"] for event in numbered} == {"event_x_7"} and view.unsequenced == 0
    first = json.loads(openai_ga.render(DELTA, None, view))
    assert json.loads(extension.skipped(view, None)) == {"type": "session.skipped", "event_id": first["event_id"]}
    assert json.loads(openai_ga.render(DELTA, None, view))["event_id"] == "event_x_u2"
