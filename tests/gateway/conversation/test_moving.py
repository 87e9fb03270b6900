"""A stage leaves a draining replica: when, with what, and what becomes of it when it cannot."""

from __future__ import annotations

import msgspec
import pytest

from gateway.conversation.commands import StageAccepted, StageDraining, StageLost, StagePlaced
from gateway.conversation.effects import CommitOrder, Grant, Replace, Vacate
from gateway.conversation.moving import MOST_REHEARD_MS

from .support import RATE, VAD_OFF, World

SPOKEN, HEARING = ("llm", "talker", "vocoder"), ("turn", "asr")


def accept(world: World) -> None:
    """Every stage has all that it was told."""
    lines = world.c.edges.state.lines
    for stage in world.c.graph.stages:
        marks = {source: readers[stage].sent for source, readers in lines.items() if stage in readers}
        world.do(StageAccepted(stage, marks, world.c.outbox.issued(stage)))


def left(world: World) -> list[str]:
    return [effect.stage for effect in world.performed(Replace) if effect.leaves]


@pytest.mark.behaviour("X5")
@pytest.mark.parametrize("stage", SPOKEN + HEARING)
def test_a_stage_that_nobody_needs_leaves_at_once_and_is_let_go_when_it_is_there(stage: str) -> None:
    world = World()
    world.say(400)
    accept(world)
    world.do(StageDraining(stage))
    assert left(world) == [stage] and not world.performed(Vacate)
    (replace,) = world.performed(Replace)
    if stage in HEARING:
        assert world.c.input.position - replace.resume_after["client"] == RATE * 400 // 1000
    world.do(StagePlaced(stage))
    assert world.performed(Vacate) == [Vacate(stage)] and not world.c.state.lost


@pytest.mark.behaviour("X5")
@pytest.mark.parametrize("stage", SPOKEN)
def test_a_stage_of_a_reply_leaves_when_the_reply_is_made(stage: str) -> None:
    world = World()
    world.ask()
    accept(world)
    world.do(StageDraining(stage))
    world.answer(("Well then.", 400))
    assert world.done.status == "completed"
    if stage != "llm":
        assert left(world) == [], "not all that it was told has arrived"
    accept(world)
    assert left(world) == [stage]
    world.do(StagePlaced(stage))
    world.positions[stage] = world.c.state.bases[stage]
    world.voice.sent_ms = 0.0 if stage == "vocoder" else world.voice.sent_ms
    world.ask()
    world.answer(("Again.", 400))
    assert world.done.status == "completed"


@pytest.mark.behaviour("X5", "X16")
@pytest.mark.parametrize("stage", HEARING)
def test_a_stage_that_hears_leaves_when_the_turn_is_over_and_its_words_are_known(stage: str) -> None:
    world = World()
    world.say(200)
    world.decide("speech_started", 0)
    accept(world)
    world.do(StageDraining(stage))
    world.say(600)
    world.decide("speech_stopped", 700)
    accept(world)
    assert left(world) == []
    world.transcribe("hello")
    assert left(world) == [stage], "the reply that follows does not need it"
    assert world.c.responses.live is not None and len(world.orders(CommitOrder)) == 1


def test_a_buffer_that_is_too_long_to_be_heard_again_keeps_its_recognizer() -> None:
    world = World(VAD_OFF)
    world.append(MOST_REHEARD_MS + 20)
    accept(world)
    world.do(StageDraining("asr"))
    assert left(world) == []
    world.do(StageDraining("llm"))
    assert left(world) == ["llm"]


@pytest.mark.behaviour("X5")
def test_what_the_old_place_says_meanwhile_is_not_heard() -> None:
    """It would use up positions of the new one; if the stage must stay after all, it is said again."""
    world = World()
    world.say(200)
    accept(world)
    world.do(StageDraining("turn"))
    before = msgspec.json.encode(world.c.edges.state)
    assert world.decide("speech_started", 0) == []
    world.do(StageAccepted("turn", {"client": 99}, 1))
    world.do(StageLost("turn", "its stream ended"))
    assert msgspec.json.encode(world.c.edges.state) == before and len(world.performed(Replace)) == 1
    world.do(StagePlaced("turn", back=True))
    world.positions["turn"] = 0
    world.decide("speech_started", 0)
    assert world.c.input.open_item is not None


@pytest.mark.behaviour("X5")
@pytest.mark.parametrize("back", [True, False])
def test_credit_counts_from_the_open_of_the_place(back: bool) -> None:
    world = World()
    world.ask()
    world.answer(("Well then.", 2000))
    world.wait(5000)
    accept(world)
    before = world.performed(Grant)[-1].granted_ms
    world.do(StageDraining("vocoder"))
    world.do(StagePlaced("vocoder", back=back))
    granted = world.performed(Grant)[-1].granted_ms
    assert granted >= before if back else granted <= world.limits.max_output_lead_ms + world.limits.credit_extra_ms


@pytest.mark.behaviour("X3", "X5")
def test_a_stage_that_is_lost_before_it_could_leave_is_lost() -> None:
    world = World()
    world.ask()
    world.do(StageDraining("llm"))
    world.do(StageLost("llm", "gone"))
    assert world.done.status == "failed" and [effect.leaves for effect in world.performed(Replace)] == [False]
    world.do(StagePlaced("llm"))
    accept(world)
    assert left(world) == [], "it is elsewhere already"
