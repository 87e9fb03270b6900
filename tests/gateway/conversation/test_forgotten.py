"""What a stage had not heard when it fell silent, and what it may not say again when the store forgot the last commits."""

from __future__ import annotations

import msgspec
import pytest

from gateway.conversation import events
from gateway.conversation.commands import Resume, StageAttached
from gateway.conversation.effects import Replace

from .tale import HEARS, SAMPLES_PER_MS, STAGES, Tale

SPOKEN = ("llm", "talker", "vocoder")


@pytest.mark.behaviour("X3")
@pytest.mark.parametrize("stage", HEARS)
def test_a_stage_that_froze_hears_again_all_since_it_froze(stage: str) -> None:
    tale = Tale()
    tale.speak(2000)
    tale.arrive()
    tale.speak(1800)
    for other in set(HEARS) - {stage}:
        tale.arrive(other)
    tale.lose(stage)
    assert tale.performed(Replace)[0].resume_after["client"] == 1500 * SAMPLES_PER_MS
    tale.place(stage)
    tale.check()


def test_a_detector_that_froze_does_not_hear_again_what_the_client_ended() -> None:
    tale = Tale()
    tale.speak(2000)
    tale.arrive()
    tale.speak(1000)
    tale.c.input.forget_until(2800)
    tale.lose("turn")
    assert tale.performed(Replace)[0].resume_after["client"] == 2800 * SAMPLES_PER_MS
    tale.place("turn")
    tale.check()


@pytest.mark.behaviour("X15")
@pytest.mark.parametrize("ahead", [*SPOKEN, None])
def test_a_reply_whose_tail_was_forgotten_with_its_commits_ends_as_failed(ahead: str | None) -> None:
    tale = Tale()
    tale.tell("hello")
    tale.respond()
    tale.write("Yes. ", last=False)
    tale.voiced(200)
    tale.arrive()
    mark = len(tale.of(events.ResponseDone))
    attached = tuple(_attached(tale, stage, is_ahead=stage == ahead) for stage in STAGES)
    tale.checks.granted = 0
    tale.do(Resume(attached))
    done = tale.of(events.ResponseDone)[mark:]
    assert [(each.response.status, each.response.error_code) for each in done] == ([("failed", "stage_lost")] if ahead else [])


def _attached(tale: Tale, stage: str, *, is_ahead: bool) -> StageAttached:
    """What the stage says at the takeover: it still has all that was not committed, or it was told to forget more than that."""
    first_kept = tale.c.edges.acknowledged(stage) + 1 + is_ahead
    return msgspec.structs.replace(tale.stages[stage].attached(), first_kept=first_kept)
