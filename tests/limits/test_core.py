"""Deadlines of the core, one after the other: a millisecond before its time nothing happens, then it does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.conversation import commands, events
from gateway.conversation.config import SemanticVad
from gateway.conversation.effects import Close
from gateway.conversation.limits import Limits
from tests.gateway.conversation.support import World

BRIEF_MS = 3000
Setup = Callable[[World], None]


def speech_is_committed(world: World) -> None:
    world.utter()


def an_update_is_staged(world: World) -> None:
    world.update(turn_detection=SemanticVad(), answer=())


def a_prompt_is_sent(world: World) -> None:
    world.ask()


def latents_are_handed_over(world: World) -> None:
    world.ask()
    world.write("Well.")
    world.latents()


def a_reply_has_begun(world: World) -> None:
    world.ask()
    world.write("Well", last=False)


def nothing_is_said(world: World) -> None:
    assert world.now < BRIEF_MS


CASES: dict[str, tuple[Setup, type[events.Event]]] = {
    "transcript_timeout_ms": (speech_is_committed, events.TranscriptionFailed),
    "update_timeout_ms": (an_update_is_staged, events.Error),
    "first_output_timeout_ms": (a_prompt_is_sent, events.ResponseDone),
    "stall_timeout_ms": (latents_are_handed_over, events.ResponseDone),
    "response_timeout_ms": (a_reply_has_begun, events.ResponseDone),
    "max_session_ms": (nothing_is_said, events.Error),
}


@pytest.mark.behaviour("X14")
@pytest.mark.parametrize("name", CASES)
def test_a_deadline_of_the_core_comes_when_its_time_is_up_and_not_before(name: str) -> None:
    prepare, tells = CASES[name]
    world = World(limits=Limits(**{name: BRIEF_MS}))
    prepare(world)
    since = 0 if name == "max_session_ms" else world.now
    world.wait(since + BRIEF_MS - 1 - world.now)
    assert not world.of(tells)
    world.wait(1)
    assert len(world.of(tells)) == 1


@pytest.mark.behaviour("L2")
def test_a_session_that_was_idle_for_too_long_ends_but_not_while_it_works() -> None:
    world = World()
    a_reply_has_begun(world)
    assert world.do(commands.Idle()) == []
    world.write(".")
    world.latents(last=True)
    world.voiced(200, last=True)
    world.wait(1000)
    assert world.done.status == "completed"
    world.do(commands.Idle())
    assert world.performed(Close) == [Close(1000, "idle_timeout")]
