"""What a stage had not heard when it fell silent, and what it may not say again when the store forgot the last commits."""

from __future__ import annotations

import msgspec
import pytest

from gateway.conversation import events
from gateway.conversation.commands import Resume, StageAttached
from gateway.conversation.effects import Emit, Replace
from gateway.conversation.failover import is_rolled_back

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
    seq = tale.c.state.seq
    tale.do(Resume(attached, known_seq=seq))
    done = tale.of(events.ResponseDone)[mark:]
    assert [(each.response.status, each.response.error_code) for each in done] == ([("failed", "rolled_back")] if ahead else [])
    told = [events.ResyncRequired("rolled_back", seq + 1)] if ahead else []
    assert tale.of(events.ResyncRequired) == told
    tale.checks.granted = 0
    tale.do(Resume(attached, known_seq=tale.c.state.seq))
    assert tale.of(events.ResyncRequired) == told, "a second takeover finds nothing more"


@pytest.mark.behaviour("X15", "R2")
@pytest.mark.parametrize("replying", [True, False])
def test_a_client_that_has_more_than_the_store_is_told_so_above_all_its_numbers(replying: bool) -> None:
    tale = Tale()
    tale.tell("hello")
    if replying:
        tale.respond()
        tale.write("Yes. ", last=False)
    count = tale.c.responses.count
    known, mark, epoch = tale.c.state.seq + 5, len(tale.of(events.ResponseDone)), tale.c.fence.epoch
    tale.checks.granted, tale.checks.seq = 0, known
    tale.do(Resume(tuple(_attached(tale, stage, is_ahead=False) for stage in STAGES), known_seq=known))
    assert tale.of(events.ResyncRequired) == [events.ResyncRequired("rolled_back", known + 1)]
    assert [each.response.error_code for each in tale.of(events.ResponseDone)[mark:]] == ["rolled_back"] * replying
    assert tale.c.fence.epoch == epoch + 1, "what stages made for what is forgotten is refused"
    tale.respond()
    (created,) = tale.of(events.ResponseCreated)[-1:]
    assert created.response.id.endswith(f"_{count + 5 + 1}"), "no id that the client may know is used again"


@pytest.mark.parametrize("ahead", ["epoch", "command_number"])
def test_a_stage_that_obeyed_what_is_forgotten_is_begun_above_and_told_of_once(ahead: str) -> None:
    tale = Tale()
    tale.tell("hello")
    known = tale.c.state.seq
    attached = tuple(_attached(tale, stage, is_ahead=False) for stage in STAGES)
    value = getattr(attached[2], ahead) + 7
    attached = (*attached[:2], msgspec.structs.replace(attached[2], **{ahead: value}), *attached[3:])
    tale.checks.granted = tale.checks.epoch = 0
    tale.checks.numbers[attached[2].stage] = attached[2].command_number
    assert is_rolled_back(tale.c, Resume(attached))
    effects = tale.c.receive(Resume(attached, known_seq=known), tale.now)
    assert [each.event for each in effects if isinstance(each, Emit)] == [events.ResyncRequired("rolled_back", known + 1)]
    assert tale.c.fence.epoch > max(each.epoch for each in attached) or ahead != "epoch"
    assert not is_rolled_back(tale.c, Resume(attached, known_seq=tale.c.state.seq))


def _attached(tale: Tale, stage: str, *, is_ahead: bool) -> StageAttached:
    """What the stage says at the takeover: it still has all that was not committed, or it was told to forget more than that."""
    first_kept = tale.c.edges.acknowledged(stage) + 1 + is_ahead
    return msgspec.structs.replace(tale.stages[stage].attached(), first_kept=first_kept)
