"""A turn of the model goes on while nobody says anything: on deadlines that do not drift, until real input comes."""

from __future__ import annotations

import msgspec
import pytest

from gateway.conversation import commands
from gateway.conversation.effects import ContinueOrder, Order
from gateway.conversation.session import Conversation
from gateway.graph import Graph, load_profile

from .duplex import CONFIG, PROFILE, Duplex
from .support import SESSION, state_of

pytestmark = pytest.mark.behaviour("T5")


def asked(world: Duplex, since: int = 0) -> list[tuple[int, ContinueOrder]]:
    """(number, order) of each continuation."""
    orders = [effect for effect in world.effects if isinstance(effect, Order) and isinstance(effect.body, ContinueOrder)]
    return [(order.number, order.body) for order in orders if order.number > since]  # type: ignore[misc]


def fires(world: Duplex, ms: int) -> list[int]:
    """When continuations were asked for in so long a silence, in ms from now."""
    begun, before, times = world.now, len(asked(world)), []
    for _ in range(ms // 5):
        world.wait(5)
        count = len(asked(world))
        times += [world.now - begun] * (count - before)
        before = count
    return times


def speaking() -> Duplex:
    """The model speaks; its second unit has just been submitted, and the client says nothing more."""
    world = Duplex()
    world.say(1020)
    world.say(20)
    world.say(1000)
    world.speaks("Hello ", begins=True, end_ms=1030)
    return world


def test_silence_is_asked_for_a_period_after_the_unit_before_and_does_not_drift() -> None:
    world = speaking()
    submitted = world.c.native.submitted_at
    begun = world.now
    assert begun - submitted < 20
    times = fires(world, 10_000)
    assert len(times) == 10
    first = submitted + 1000 - begun
    assert times == pytest.approx([first + 1000 * n for n in range(10)], abs=5)
    order = asked(world)[-1][1]
    assert (order.epoch, order.turn, order.end_ms) == (1, 1, world.heard_ms + 1000)
    assert [each for each, _ in asked(world)] == list(range(2, 12)), "numbered on the core's edge"


def test_a_late_answer_of_the_model_moves_no_deadline() -> None:
    world = speaking()
    world.wait(700)
    world.speaks("there ", end_ms=2030)
    assert fires(world, 2000) == pytest.approx([300, 1300], abs=25)


def test_input_that_flows_needs_no_silence() -> None:
    world = speaking()
    for _ in range(200):
        world.wait(20)
        world.append(20)
    assert not asked(world)


def test_input_that_jitters_is_waited_for_and_input_that_stops_is_not() -> None:
    world = speaking()
    for pause in (20, 180, 60, 190, 150, 199) * 3:
        world.wait(pause)
        world.append(pause)
    assert not asked(world)
    world.append(300)
    left = world.c.native.submitted_at + 1000 - world.now
    assert fires(world, 1500) == pytest.approx([max(200, left)], abs=10)


def test_a_long_stall_asks_for_one_unit_and_begins_anew() -> None:
    world = speaking()
    world.now += 7300
    world.do(commands.Tick())
    assert len(asked(world)) == 1
    assert fires(world, 2500) == [1000, 2000]


def test_nothing_is_asked_for_when_the_turn_is_over_or_cut_off_or_its_model_lost() -> None:
    for end in ("ends", "cancelled", "lost", "failed"):
        world = speaking()
        match end:
            case "ends":
                world.speaks("bye.", ends=True)
            case "cancelled":
                world.do(commands.ResponseCancel())
            case "lost":
                world.do(commands.StageLost("seer", "gone"))
            case "failed":
                world.do(commands.StageFailed("singer", "no"))
        assert world.c.native.turn == 0
        assert fires(world, 5000) == [], end


def test_a_profile_may_leave_it_to_the_client() -> None:
    graph = Graph(load_profile(PROFILE.replace("native: {", "native: {continue_silence: false, "), "patient"))
    world = Duplex(graph=graph)
    world.say(2040)
    world.speaks("Hello ", begins=True)
    assert fires(world, 5000) == []


def test_the_deadline_lives_on_in_the_checkpoint() -> None:
    world = speaking()
    world.wait(400)
    restored = world.restored()
    assert restored.deadline == world.c.deadline and isinstance(restored, Conversation)
    effects = restored.receive(commands.Tick(), world.now + 1000)
    assert [effect.body for effect in effects if isinstance(effect, Order)] == [ContinueOrder(world.heard_ms + 1000, 1, 1)]
    assert restored.session_id == SESSION and state_of(restored) != state_of(world.c)


def test_another_gateways_order_is_given_again_until_it_is_obeyed() -> None:
    world = speaking()
    world.wait(1200)
    assert len(asked(world)) == 1
    restored = world.restored()
    attached = commands.StageAttached("seer", 1, {"client": restored.input.position, "core": 0}, 1)
    again = restored.receive(commands.Resume((attached,)), world.now)
    assert [effect.body for effect in again if isinstance(effect, Order) and isinstance(effect.body, ContinueOrder)] == [asked(world)[0][1]]
    obeyed = world.restored()
    number = asked(world)[0][0]
    marks = {"client": obeyed.input.position, "core": number}
    once = obeyed.receive(commands.Resume((commands.StageAttached("seer", 1, marks, number),)), world.now)
    assert not [effect for effect in once if isinstance(effect, Order) and isinstance(effect.body, ContinueOrder)]


def test_after_a_clear_silence_is_of_the_input_that_holds() -> None:
    world = speaking()
    world.do(commands.InputClear())
    world.wait(1500)
    assert [order.input_generation for _, order in asked(world)] == [1]


def test_a_listening_model_is_left_in_peace() -> None:
    world = Duplex(msgspec.structs.replace(CONFIG))
    world.say(5000)
    world.listens()
    assert fires(world, 5000) == []
