"""What our own client hears beyond the GA dialect."""

from __future__ import annotations

import json

import pytest

from gateway.conversation import events
from gateway.wire import extension, openai_ga
from gateway.wire.limits import WireLimits
from gateway.wire.problems import WireRefusal

DELTA = events.AudioDelta("resp_x_1", "item_a_x_1", 0, b"\x00\x00")


def test_a_muted_event_leaves_its_place_in_the_count_to_the_word_that_stands_for_it() -> None:
    view = openai_ga.SessionView("sess_x")
    numbered = [json.loads(openai_ga.render(DELTA, 7, view)), json.loads(extension.skipped(view, 7))]
    assert {event["event_id"] for event in numbered} == {"event_x_7"} and view.unsequenced == 0
    first = json.loads(openai_ga.render(DELTA, None, view))
    assert json.loads(extension.skipped(view, None)) == {"type": "session.skipped", "event_id": first["event_id"]}
    assert json.loads(openai_ga.render(DELTA, None, view))["event_id"] == "event_x_u2"


def test_a_resync_is_told_in_the_place_of_what_it_stands_for() -> None:
    view = openai_ga.SessionView("sess_x")
    gap = json.loads(extension.journal_gap(view, 50))
    assert gap == {"type": "session.resync_required", "event_id": "event_x_49", "reason": "journal_gap", "first_seq": 50}
    told = json.loads(openai_ga.render(events.ResyncRequired("rolled_back", 8), 8, view))
    assert told == {"type": "session.resync_required", "event_id": "event_x_8", "reason": "rolled_back", "first_seq": 8}


def test_a_resume_says_how_many_events_came_without_a_number() -> None:
    claim = {"type": "session.resume", "session_id": "sess_x", "resume_token": "t", "last_seq": 7}
    asked = extension.parse_resume(json.dumps(claim))
    assert (asked.last_seq, asked.unnumbered) == (7, 0), "who does not say has none"
    assert extension.parse_resume(json.dumps({**claim, "unnumbered": 3})).unnumbered == 3
    for wrong in (-1, 2**60, "3", None, 1.5):
        with pytest.raises(WireRefusal) as refused:
            extension.parse_resume(json.dumps({**claim, "unnumbered": wrong}))
        assert refused.value.param == "unnumbered"


@pytest.mark.parametrize("seq", [-1, 2**60, "7", None, 1.5])
def test_an_acknowledgement_of_no_number_is_refused_by_name(seq: object) -> None:
    with pytest.raises(WireRefusal) as refused:
        extension.parse(json.dumps({"type": "session.event_ack", "seq": seq, "event_id": "e1", "client_seq": 4}), WireLimits())
    assert (refused.value.code, refused.value.param) == ("invalid_field", "seq")
    assert (refused.value.client_event_id, refused.value.client_seq) == ("e1", 4)
