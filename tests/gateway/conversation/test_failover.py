"""The core after a takeover: what it asks for again, what it never does twice, and what it says of it."""

from __future__ import annotations

from typing import TypeVar

import pytest

from gateway.conversation import commands, events
from gateway.conversation.commands import StageUpdated
from gateway.conversation.config import SemanticVad, SessionPatch
from gateway.conversation.effects import CancelOrder, Close, Emit, Grant, Order, PromptOrder, Relay
from gateway.conversation.limits import Limits

from .support import CONFIG, names, user_text
from .tale import HEARS, Tale, asked

SPOKEN = ("llm", "talker", "vocoder")
E = TypeVar("E")


def since(tale: Tale, mark: int, kind: type[E]) -> list[E]:
    return [effect for effect in tale.effects[mark:] if isinstance(effect, kind)]


@pytest.mark.behaviour("X1")
def test_a_takeover_that_finds_all_as_committed_tells_the_client_nothing() -> None:
    tale = asked()
    tale.arrive()
    mark = len(tale.effects)
    tale.die()
    assert since(tale, mark, Emit) == [] and since(tale, mark, Order) == [] and since(tale, mark, Relay) == []
    tale.answer(("Yes. ", 400), ("Well.", 300))
    assert tale.done.status == "completed" and tale.sent_ms == 700
    tale.check()


@pytest.mark.behaviour("X1")
def test_orders_that_no_stage_obeyed_are_given_again_with_their_numbers() -> None:
    tale = asked()
    prompt = tale.orders(PromptOrder)[-1]
    mark = len(tale.effects)
    tale.die()
    again = since(tale, mark, Order)
    assert [order.body for order in again if order.stage == "llm"] == [prompt]
    assert {order.stage for order in again} == {"llm", "asr"} and [order.number for order in again] == [1, 1]
    tale.arrive()
    mark = len(tale.effects)
    tale.die()
    assert since(tale, mark, Order) == []
    assert [order.body for order in tale.stages["llm"].orders] == [prompt]


def test_an_order_that_one_stage_obeyed_is_given_again_to_the_others_only() -> None:
    tale = asked()
    tale.do(commands.ResponseCancel())
    tale.arrive("llm")
    mark = len(tale.effects)
    tale.die()
    cancels = [order.stage for order in since(tale, mark, Order) if isinstance(order.body, CancelOrder)]
    assert cancels == ["talker", "vocoder"]
    tale.arrive()
    assert {tale.stages[stage].epoch for stage in SPOKEN} == {2}


@pytest.mark.behaviour("F10", "X1")
def test_the_highest_epoch_of_any_stage_is_adopted_and_its_cancel_finished() -> None:
    """The store forgot a barge-in that one stage had heard of: the reply does not speak again."""
    tale = asked()
    tale.write("Well", last=False)
    tale.arrive()
    tale.stages["vocoder"].epoch = 5
    mark = len(tale.effects)
    tale.die()
    assert tale.c.fence.epoch > 5 and tale.c.responses.live is None
    assert (tale.done.status, tale.done.reason) == ("cancelled", "turn_detected")
    cancels = [order for order in since(tale, mark, Order) if isinstance(order.body, CancelOrder)]
    assert [order.stage for order in cancels] == list(SPOKEN)
    assert {order.body.next_epoch for order in cancels} == {tale.c.fence.epoch}
    tale.speak(100)
    tale.respond()
    tale.answer(("Again.", 200))
    assert tale.done.status == "completed"


def test_numbers_that_a_stage_knows_and_the_store_forgot_are_not_used_again() -> None:
    tale = asked()
    tale.arrive()
    tale.stages["llm"].number, tale.stages["llm"].marks["core"] = 7, 7
    tale.die()
    tale.do(commands.ResponseCancel())
    tale.respond()
    tale.arrive()
    assert [order.number for order in tale.stages["llm"].orders[-2:]] == [8, 9]
    assert isinstance(tale.stages["llm"].orders[-1].body, PromptOrder)


@pytest.mark.behaviour("X2", "M4")
def test_input_goes_on_where_all_have_it_in_whatever_pieces_it_comes_again() -> None:
    tale = Tale()
    tale.speak(100)
    tale.arrive()
    for _ in range(4):
        tale.speak(50)
    tale.stages["turn"].arrive(3)
    tale.stages["asr"].arrive(1)
    tale.die()
    assert tale.c.input.position == tale.samples and tale.c.input.end_ms(CONFIG.input_format) == 300
    again = [relay for relay in tale.stages["asr"].coming if isinstance(relay, Relay)]
    assert again[0].previous == 150 * 24 and len(again) > 3, "what is sent again comes in other pieces"
    assert 250 * 24 in [relay.position for relay in again], "no piece reaches across what a stage has"
    tale.check()


@pytest.mark.behaviour("X2")
def test_a_client_that_sends_nothing_again_goes_on_where_the_first_stage_is() -> None:
    tale = Tale()
    tale.speak(100)
    tale.stages["turn"].arrive()
    tale.die(resends=False)
    tale.speak(100)
    tale.settle()
    for name in HEARS:
        assert tale.stages[name].marks["client"] == 200 * 24


def test_the_odd_byte_of_a_split_sample_goes_with_its_connection() -> None:
    tale = Tale()
    tale.do(commands.InputAppend(audio=b"\x01\x02\x03"))
    tale.arrive()
    tale.die()
    assert tale.c.input.carry == b"" and tale.c.input.position == 1


@pytest.mark.behaviour("X2")
def test_a_command_is_obeyed_once_however_often_it_is_sent() -> None:
    tale = Tale()
    tale.tell("one")
    tale.late = True
    tale.tell("two")
    tale.die()
    tale.commit_now()
    tale.do(commands.ItemCreate(item=tale.said[-1].item, client_seq=2))  # type: ignore[union-attr]
    assert tale.c.state.client_seq == 2 and tale.of(events.Error) == []
    tale.check()


def test_a_command_that_was_refused_is_not_refused_again() -> None:
    tale = Tale()
    told = tale.do(commands.ResponseCancel(client_seq=1, event_id="e"))
    assert names(told) == ["Error"]
    tale.die()
    assert tale.do(commands.ResponseCancel(client_seq=1, event_id="e")) == []


@pytest.mark.behaviour("X2", "P1")
@pytest.mark.parametrize("dies", [False, True])
def test_what_the_wire_refused_is_told_once_and_counts(dies: bool) -> None:
    tale = Tale()
    refused = commands.Refused(code="missing_field", message="Required.", event_id="e", client_seq=1)
    assert names(tale.do(refused)) == ["Error"] and tale.c.state.client_seq == 1
    if dies:
        tale.die()
    assert tale.do(refused) == []
    tale.do(commands.ItemCreate(item=user_text("two"), client_seq=2))
    assert tale.c.state.client_seq == 2


@pytest.mark.behaviour("X2", "P1")
def test_what_the_wire_refused_waits_its_turn_so_that_nothing_before_it_passes_for_decided() -> None:
    tale = asked()
    tale.say_command(commands.SessionUpdate(patch=SessionPatch(turn_detection=SemanticVad())))
    tale.tell("waits")
    tale.say_command(commands.Refused(code="missing_field", message="Required.", event_id="e"))
    assert tale.c.state.client_seq == 1 and tale.of(events.Error) == []
    assert names(tale.do(commands.Refused(code="invalid_json", message="no"))) == ["Error"], "what has no number waits for nothing"
    tale.die()
    updating = tale.c.state.updating
    assert updating is not None
    for stage in list(updating.waiting):
        tale.do(StageUpdated(stage, updating.generation))
    assert [error.code for error in tale.of(events.Error)] == ["invalid_json", "missing_field"]
    assert tale.c.state.client_seq == 3
    tale.check()


@pytest.mark.parametrize("dies", [False, True])
def test_what_is_refused_for_want_of_room_is_not_obeyed_when_it_comes_again(dies: bool) -> None:
    tale = asked(limits=Limits(max_held_commands=2))
    tale.arrive()
    tale.say_command(commands.SessionUpdate(patch=SessionPatch(turn_detection=SemanticVad())))
    for text in ("two", "three"):
        tale.tell(text)
    late = [commands.ItemCreate(item=user_text(text, text), client_seq=number) for number, text in ((4, "four"), (5, "five"))]
    for command in late:
        assert names(tale.do(command)) == ["Error"]
    assert tale.c.state.overtaken == [(4, 2)] and tale.c.state.client_seq == 1
    if dies:
        tale.die()
    updating = tale.c.state.updating
    assert updating is not None
    for stage in list(updating.waiting):
        tale.do(StageUpdated(stage, updating.generation))
    assert tale.c.state.client_seq == 5 and tale.c.state.overtaken == []
    for command in late:
        assert tale.do(command) == []
    tale.check()


@pytest.mark.behaviour("X2")
@pytest.mark.parametrize("dies", [False, True])
def test_a_cancel_that_overtakes_what_waits_drops_none_of_it_and_is_obeyed_once(dies: bool) -> None:
    tale = asked()
    tale.say_command(commands.SessionUpdate(patch=SessionPatch(turn_detection=SemanticVad())))
    tale.tell("waits")
    tale.say_command(commands.ResponseCancel())
    assert tale.done.status == "cancelled" and tale.c.state.updating is not None
    if dies:
        tale.die()
    tale.arrive()
    tale.do(StageUpdated("turn", 2))
    assert tale.of(events.Error) == [] and len(tale.of(events.ItemAdded)) == 2
    tale.die()
    assert tale.of(events.Error) == [], "the cancel was not obeyed again"
    tale.check()


def test_what_waits_behind_an_update_is_obeyed_once_after_the_takeover() -> None:
    tale = Tale()
    tale.say_command(commands.SessionUpdate(patch=SessionPatch(turn_detection=SemanticVad())))
    tale.tell("held")
    tale.speak(100)
    tale.die()
    assert tale.of(events.ItemAdded) == []
    tale.arrive()
    tale.do(StageUpdated("turn", 2))
    assert names(tale.of(events.SessionUpdated)) == ["SessionUpdated"]
    tale.check()


@pytest.mark.behaviour("X1")
def test_credit_is_granted_again_to_a_stage_that_may_not_have_heard_of_it() -> None:
    tale = asked()
    tale.answer(("A long story. ", 1200))
    mark = len(tale.effects)
    tale.die()
    (grant,) = since(tale, mark, Grant)
    assert grant.granted_ms <= tale.c.playback.passed_us // 1000 + 1500 and grant.granted_ms > 0


@pytest.mark.behaviour("X1")
def test_sound_that_was_held_or_not_committed_leaves_once() -> None:
    tale = asked()
    tale.write("A long story.")
    tale.latents(last=True)
    tale.late = True
    tale.voiced(1400, last=True)
    tale.die()
    tale.late = False
    tale.wait(3000)
    assert tale.sent_ms == 1400 and tale.done.status == "completed"


@pytest.mark.behaviour("X5")
@pytest.mark.parametrize("closed", [False, True])
def test_a_drain_ends_with_the_gateway_that_drained(closed: bool) -> None:
    tale = Tale() if closed else asked()
    tale.drain()
    assert bool(tale.performed(Close)) == closed
    mark = len(tale.effects)
    tale.die()
    if closed:
        tale.create("go on")
        tale.respond()
    tale.answer(("Yes.", 300))
    tale.wait(1000)
    assert tale.done.status == "completed" and since(tale, mark, Close) == []


def test_deadlines_go_on_from_the_time_that_was_committed() -> None:
    tale = Tale()
    tale.speak(300)
    tale.decide("speech_started", 0)
    tale.decide("speech_stopped", 200)
    item_id = next(iter(tale.c.dialog.hearing))
    tale.die()
    tale.wait(tale.limits.transcript_timeout_ms)
    assert [event.item_id for event in tale.of(events.TranscriptionFailed)] == [item_id]
