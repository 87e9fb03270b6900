"""The user pauses: the open unit is closed early, and silence is passed over for it; nothing of a voice ever is."""

from __future__ import annotations

import pytest

from gateway.conversation import commands, events
from gateway.conversation.commands import InputAppend
from gateway.conversation.early_close import ONSET_MS
from gateway.conversation.effects import CloseUnitOrder, ContinueOrder, Order, SkipSilenceOrder
from gateway.graph import Graph, load_profile

from .duplex import DUPLEX, EAGER, PROFILE, Duplex, DuplexTale
from .support import pcm


def closed(world: Duplex) -> list[int]:
    return [order.end_ms for order in world.orders(CloseUnitOrder, "seer")]


def skipped(world: Duplex) -> list[tuple[int, int]]:
    return [(order.start_ms, order.end_ms) for order in world.orders(SkipSilenceOrder, "seer")]


def talking(until_ms: int, world: Duplex | None = None) -> Duplex:
    """The user speaks since the first units, which were listened to: they end at 1030 and 2030."""
    world = world or Duplex(graph=EAGER)
    world.say(1040)
    world.listens(1030)
    world.decide("speech_started", 1000)
    world.say(1000)
    world.listens(2030)
    world.say(until_ms - 2040)
    return world


def pauses(world: Duplex, at_ms: int) -> None:
    """The voice ended there, as the detector tells 140 ms later."""
    world.say(at_ms + 140 - world.heard_ms)
    world.decide("pause", at_ms)


def test_the_open_unit_is_closed_so_long_after_the_voice() -> None:
    world = talking(2400)
    pauses(world, 2400)
    assert closed(world) == []
    world.say(40)
    assert closed(world) == []
    world.say(20)
    assert closed(world) == [2600 + 1000]
    assert (world.c.native.boundary_ms, world.c.native.submitted_at) == (3600, world.now)
    world.say(200)
    assert closed(world) == [3600], "once"
    world.listens(2595)
    assert world.c.native.boundary_ms == 3595 and not skipped(world), "the stage's own end; more silence is not known of"
    world.say(120)
    world.decide("speech_stopped", 2400)
    silent_ms = world.heard_ms - ONSET_MS
    assert skipped(world) == [(2595, silent_ms)] and world.c.native.boundary_ms == silent_ms + 1000
    assert [event.item_id for event in world.of(events.InputCommitted)] and closed(world) == [3600]


def test_nothing_is_closed_where_a_profile_does_not_ask_for_it() -> None:
    world = talking(2400, Duplex(graph=DUPLEX))
    pauses(world, 2400)
    world.say(400)
    world.decide("speech_stopped", 2400)
    assert not closed(world) and world.c.native.boundary_ms == 3030 and world.c.native.closing is None


def test_a_pause_that_is_over_takes_it_back() -> None:
    world = talking(2400)
    pauses(world, 2400)
    world.say(40)
    world.decide("speech_resumed", 2560)
    world.say(400)
    assert not closed(world)
    pauses(world, world.heard_ms)
    world.listens(3030)
    world.say(100)
    assert len(closed(world)) == 1, "the next one counts"


def test_speech_that_begins_anew_takes_it_back() -> None:
    graph = Graph(load_profile(PROFILE.replace("native: {", "native: {early_close_ms: 800, "), "patient"))
    world = talking(2100, Duplex(graph=graph))
    world.say(500)
    world.decide("speech_stopped", 2100)
    world.say(200)
    world.decide("speech_started", 2700)
    world.say(400)
    assert not closed(world)


def test_silence_is_passed_over_as_far_as_the_unit_was_filled() -> None:
    world = talking(2700)
    pauses(world, 2700)
    world.say(60)
    world.listens(2900)
    world.say(300)
    world.decide("speech_stopped", 2700)
    assert skipped(world) == [(2900, 3030)], "the clock is what it was"
    assert world.c.native.boundary_ms == 4030


def test_a_stop_that_comes_before_the_model_has_decided_waits_for_it() -> None:
    world = talking(2700)
    pauses(world, 2700)
    world.say(360)
    world.decide("speech_stopped", 2700)
    assert closed(world) and not skipped(world)
    world.listens(2900)
    assert skipped(world) == [(2900, 3030)]


def test_a_user_who_goes_on_loses_nothing_but_silence() -> None:
    world = talking(2300)
    pauses(world, 2300)
    world.say(60)
    world.listens(2500)
    world.say(240)
    world.decide("speech_resumed", 2700)
    assert skipped(world) == [(2500, 2700 - ONSET_MS)], "not what may be the onset"
    assert world.c.native.boundary_ms == 3700 - ONSET_MS
    world.say(200)
    world.decide("pause", 2900)
    assert len(closed(world)) == 1, "a second of input is cut short once"
    world.say(200)
    assert len(closed(world)) == 2 and world.heard_ms >= 3030


def test_a_model_that_answers_hears_all_so_that_its_sound_has_no_hole() -> None:
    world = talking(2400)
    pauses(world, 2400)
    world.say(60)
    submitted = world.c.native.submitted_at
    world.speaks("Well, ", begins=True, end_ms=2600)
    world.say(300)
    world.decide("speech_stopped", 2400)
    assert not skipped(world) and world.c.native.boundary_ms == 3600 and world.c.responses.live is not None
    world.wait(1500)
    (order,) = world.orders(ContinueOrder)
    assert order.end_ms == world.heard_ms + 1000 and world.c.native.submitted_at == submitted + 1000, "a period after the unit"


def test_a_user_who_goes_on_cuts_off_the_answer_to_the_half_of_it() -> None:
    world = talking(2400)
    pauses(world, 2400)
    world.say(60)
    world.speaks("Well, ", begins=True, end_ms=2600)
    world.say(200)
    world.decide("speech_resumed", 2780)
    assert world.done.status == "cancelled" and world.done.reason == "turn_detected" and world.c.fence.epoch == 2
    late = talking(2400)
    pauses(late, 2400)
    late.say(200)
    late.decide("speech_resumed", 2700)
    late.speaks("Well, ", begins=True, end_ms=2600)
    assert not late.of(events.ResponseCreated) and late.c.fence.epoch == 2, "one that comes late does not begin"


def test_a_reply_to_a_whole_unit_is_cut_off_as_ever() -> None:
    world = talking(2060)
    world.speaks("Yes, ", begins=True, end_ms=2030)
    pauses(world, 2060)
    world.say(100)
    world.decide("speech_resumed", 2260)
    assert world.c.responses.live is not None and not closed(world)


@pytest.mark.parametrize("first", ["turn", "unit"])
def test_a_model_that_speaks_or_has_a_unit_to_decide_is_let_be(first: str) -> None:
    world = talking(2900)
    pauses(world, 2900)
    assert world.c.native.awaited, "2030 to 3030 is over"
    world.say(100)
    assert not closed(world)
    if first == "turn":
        world.speaks("So ", begins=True, end_ms=3030)
        world.say(100)
        assert not closed(world)
    else:
        world.listens(3030)
        assert closed(world) == [world.heard_ms + 1000], "then the one that just began is closed"


def test_a_pause_that_a_whole_unit_heard_closes_nothing() -> None:
    world = talking(2400)
    world.speaks("So ", begins=True, end_ms=2030)
    pauses(world, 2400)
    world.say(500)
    world.speaks("what?", ends=True, end_ms=3030)
    world.say(200)
    world.decide("speech_stopped", 2400)
    assert not closed(world)


def test_a_unit_that_real_input_completed_first_is_no_early_one() -> None:
    world = talking(2800)
    pauses(world, 2800)
    world.say(60)
    assert len(closed(world)) == 1
    world.listens(3030)
    world.say(300)
    world.decide("speech_stopped", 2800)
    assert not skipped(world) and world.c.native.boundary_ms == 4030
    world.say(300)
    assert len(closed(world)) == 1


@pytest.mark.parametrize("what", ["clear", "commit", "lost"])
def test_what_ends_the_input_ends_it(what: str) -> None:
    world = talking(2400)
    pauses(world, 2400)
    command = {"clear": commands.InputClear(), "commit": commands.InputCommit(), "lost": commands.StageLost("seer", "gone")}[what]
    world.do(command)
    world.say(400)
    world.decide("speech_stopped", 2400, 2500)
    assert not closed(world)
    again = talking(2400)
    pauses(again, 2400)
    again.say(60)
    again.do(command)
    if what == "lost":
        again.do(commands.StagePlaced("seer"))
    else:
        again.listens(2600)
    again.say(300)
    assert not skipped(again)
    assert what != "clear" or again.c.native.boundary_ms == 3600


def test_orders_are_of_the_input_that_holds() -> None:
    world = Duplex(graph=EAGER)
    world.say(500)
    world.do(commands.InputClear())
    world.say(300)
    world.decide("speech_started", 600)
    pauses(world, 900)
    world.say(60)
    (order,) = world.orders(CloseUnitOrder)
    assert order.input_generation == 1 and world.heard_ms == 1100, "the first unit after it has nothing before it"


def test_frames_after_it_are_of_the_next_unit() -> None:
    world = talking(2400)
    jpeg = commands.Frame("image/jpeg", b"\xff\xd8\xff")
    most = world.c.limits.max_unit_frames
    world.do(InputAppend(audio=b"", frames=(jpeg,) * most))
    pauses(world, 2400)
    world.say(60)
    world.do(InputAppend(audio=pcm(20), frames=(jpeg,)))
    assert world.c.native.frames == 1 and not world.of(events.Error)
    late = world.do(InputAppend(audio=b"", frames=(jpeg,), frames_t_ms=2590, event_id="e"))
    assert [type(event).__name__ for event in late] == ["Error"], "its unit is over"


@pytest.mark.behaviour("X1", "E1")
def test_a_takeover_closes_once_and_passes_over_once() -> None:
    tale, whole = DuplexTale(graph=EAGER), DuplexTale(graph=EAGER)
    for each in (tale, whole):
        talking(2700, each)
        pauses(each, 2700)
    tale.arrive()
    tale.die()
    for each in (tale, whole):
        each.say(60)
    tale.arrive()
    tale.die()
    for each in (tale, whole):
        each.listens(2900)
        each.say(300)
        each.decide("speech_stopped", 2700)
    tale.arrive()
    tale.die()
    tale.arrive()
    for each in (tale, whole):
        obeyed = [order.body for order in each.stages["seer"].orders if isinstance(order.body, CloseUnitOrder | SkipSilenceOrder)]
        each.arrive()
        assert skipped(whole) == [(2900, 3030)] and each.c.native.boundary_ms == 4030
        if each is tale:
            assert [type(body).__name__ for body in obeyed] == ["CloseUnitOrder", "SkipSilenceOrder"]


def test_the_pause_lives_on_in_the_checkpoint() -> None:
    world = talking(2400)
    pauses(world, 2400)
    restored = world.restored()
    effects = restored.receive(InputAppend(audio=pcm(60)), world.now)
    assert [effect.body for effect in effects if isinstance(effect, Order)] == [CloseUnitOrder(3600)]
