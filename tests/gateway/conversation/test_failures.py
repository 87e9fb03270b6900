"""What fails behind, what is late, and how a session ends: always told by type, never silent."""

from __future__ import annotations

import pytest

from gateway.conversation import commands, events
from gateway.conversation.commands import FinishOut, StageFailed, StageGone, StageLost, Tick
from gateway.conversation.config import SemanticVad
from gateway.conversation.effects import CancelOrder, Close, Mute, PromptOrder
from gateway.conversation.limits import Limits

from .support import VAD_OFF, World, names

FAILED = FinishOut("failed", error_message="boom")


def asked() -> World:
    world = World()
    world.ask()
    return world


def failed_by(world: World, code: str, stage: str) -> None:
    assert (world.done.status, world.done.error_code) == ("failed", code) and stage in (world.done.error_message or "")
    assert world.performed(Mute)
    assert world.orders(CancelOrder, "vocoder"), "the rest of it is called off"


@pytest.mark.behaviour("S2")
@pytest.mark.parametrize("stage", ["llm", "talker", "vocoder"])
def test_a_failed_stage_ends_its_response_and_the_next_one_works(stage: str) -> None:
    world = asked()
    world.write("Well. ", last=False)
    world.chunk(stage, last=True, finish=FAILED)
    failed_by(world, "stage_failed", stage)
    assert "boom" not in (world.done.error_message or "")
    world.ask("And now?")
    world.answer(("Now it works.", 200))
    assert world.done.status == "completed" and len(world.of(events.ResponseDone)) == 2


@pytest.mark.behaviour("S2")
def test_a_refusal_of_a_response_stage_ends_the_response() -> None:
    world = asked()
    world.do(commands.ResponseCancel())
    world.respond()
    live = world.c.responses.live
    assert live is not None
    world.do(StageFailed("talker", "no", live.epoch, "resp_other"))
    world.do(StageFailed("talker", "no", live.epoch - 1))
    assert world.c.responses.live is live
    world.do(StageFailed("talker", "no", live.epoch, live.id))
    failed_by(world, "stage_failed", "talker")


def test_a_failed_reply_keeps_what_was_sent_because_the_client_plays_it() -> None:
    world = asked()
    world.answer(("One. ", 600), ("Two. ", 1200))
    world.chunk("llm", last=True, finish=FAILED)
    world.do(StageFailed("vocoder", "no"))
    assert world.history()[-1] == "One." and world.sent_ms == 1000
    assert world.c.history.items[world.c.history.order[-1]].content[0].audio_ms == 1000
    world.wait(200)
    world.say(20)
    world.decide("speech_started", 800)
    assert world.history()[-1] == ""


@pytest.mark.parametrize("as_a_chunk", [False, True])
def test_a_failure_of_the_recogniser_fails_the_words_that_are_awaited(as_a_chunk: bool) -> None:
    world = World()
    item_id = world.utter()
    told = world.chunk("asr", last=True, finish=FAILED, response_id="") if as_a_chunk else world.do(StageFailed("asr", "no"))
    assert names(told) == ["TranscriptionFailed"] and told[0].item_id == item_id and world.c.quiet


def test_a_failure_of_the_detector_is_told_and_leaves_the_reply_alone() -> None:
    world = asked()
    told = world.do(StageFailed("turn", "no"))
    assert names(told) == ["Error"] and (told[0].code, world.c.responses.live is not None) == ("stage_failed", True)


def test_a_model_that_writes_nothing_is_given_up() -> None:
    world = asked()
    world.wait(world.limits.first_output_timeout_ms - 1)
    assert world.of(events.ResponseDone) == []
    world.wait(1)
    failed_by(world, "stage_timeout", "llm")


def test_a_response_without_any_progress_is_given_up() -> None:
    world = asked()
    world.write("Well", last=False)
    world.wait(world.limits.response_timeout_ms)
    failed_by(world, "stage_timeout", "llm")


def test_a_vocoder_that_never_answers_is_given_up_within_two_seconds() -> None:
    world = asked()
    world.write("Well.")
    world.latents()
    world.wait(1999)
    assert world.of(events.ResponseDone) == []
    world.wait(1)
    failed_by(world, "stage_timeout", "vocoder")
    assert world.history()[-1] == "", "what never sounded is not in the history"


def test_a_vocoder_that_stops_in_the_middle_is_given_up_once_it_has_credit_to_go_on() -> None:
    world = asked()
    world.write("Well. And so on.")
    world.latents(last=True)
    world.voiced(1500)
    world.wait(500 + world.limits.stall_timeout_ms - 1)
    assert world.sent_ms == 1500 and world.of(events.ResponseDone) == []
    world.wait(1)
    failed_by(world, "stage_timeout", "vocoder")


def test_a_vocoder_that_waits_for_latents_is_not_to_blame() -> None:
    world = asked()
    world.write("Well. ", last=False)
    world.latents()
    world.voiced(300)
    world.wait(10_000)
    assert world.of(events.ResponseDone) == []
    world.write("Then.")
    world.latents(last=True)
    world.voiced(300, last=True)
    assert world.done.status == "completed"


def test_a_vocoder_that_does_not_answer_a_bare_end_is_given_up() -> None:
    world = asked()
    world.write()
    world.chunk("talker", last=True)
    world.wait(world.limits.stall_timeout_ms)
    failed_by(world, "stage_timeout", "vocoder")


def test_waiting_turns_are_answered_after_a_failure() -> None:
    world = asked()
    world.c.responses.owed = True
    world.chunk("llm", last=True, finish=FAILED)
    assert len(world.of(events.ResponseCreated)) == 2 and world.c.responses.live is not None


@pytest.mark.behaviour("L4")
def test_a_stage_that_cannot_be_placed_anew_ends_the_response_then_the_session() -> None:
    world = asked()
    world.do(StageLost("llm", "gone"))
    assert (world.done.status, world.done.error_code) == ("failed", "stage_lost") and world.performed(Close) == []
    world.respond()
    told = world.do(StageGone("llm"))
    assert names(told)[-3:] == ["ResponseDone", "RateLimits", "Error"] and told[-1].code == "stage_lost"
    assert world.performed(Close) == [Close(1011, "stage_lost")]
    assert world.do(Tick()) == [] == world.respond(), "nothing follows"
    assert len(world.of(events.ResponseCreated)) == 2


@pytest.mark.behaviour("L4")
def test_an_expired_session_ends_its_response_and_says_so() -> None:
    world = World(limits=Limits(max_session_ms=5000))
    world.ask()
    world.write("Well", last=False)
    world.wait(5000 - world.now)
    assert (world.done.status, world.done.error_code, world.error.code) == ("failed", "session_expired", "session_expired")
    assert world.performed(Close) == [Close(1001, "session_expired")]


def test_a_quiet_session_drains_at_once() -> None:
    world = World()
    world.drain()
    assert world.performed(Close) == [Close(1012, "server_draining")]


def test_a_draining_session_finishes_what_is_said_and_heard() -> None:
    world = asked()
    world.drain()
    world.answer(("Yes.", 500))
    assert world.done.status == "completed" and world.performed(Close) == []
    world.wait(499)
    assert world.performed(Close) == []
    world.wait(1)
    assert world.performed(Close) == [Close(1012, "server_draining")]


def test_a_draining_session_waits_for_the_user_and_for_their_words() -> None:
    world = World()
    world.say(200)
    world.decide("speech_started", 0)
    world.drain()
    world.say(300)
    world.decide("speech_stopped", 400)
    assert world.performed(Close) == []
    world.transcribe("")
    assert world.performed(Close) == [Close(1012, "server_draining")]


def test_a_draining_session_settles_its_update() -> None:
    world = World()
    world.update(turn_detection=SemanticVad(), answer=())
    world.drain()
    assert world.performed(Close) == []
    world.do(commands.StageUpdated("turn", 2))
    assert names(world.of(events.SessionUpdated)) == ["SessionUpdated"] and world.performed(Close)


def test_while_draining_no_deadline_stays_in_the_past() -> None:
    world = asked()
    world.answer(("Yes.", 100))
    world.wait(1000)
    world.say(200)
    world.decide("speech_started", 800)
    world.drain()
    assert world.c.deadline is None or world.c.deadline > world.now


def test_cancelling_is_possible_while_words_are_late() -> None:
    world = World(VAD_OFF)
    world.say(200)
    world.do(commands.InputCommit())
    world.respond()
    world.wait(world.limits.transcript_timeout_ms)
    assert world.of(events.TranscriptionFailed) and world.orders(PromptOrder) == []
    assert (world.done.status, world.done.output) == ("completed", ())
