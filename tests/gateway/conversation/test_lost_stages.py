"""The core when a stage is lost: what fails of it, what is heard again, and that all the rest goes on."""

from __future__ import annotations

import pytest

from gateway.conversation import commands, events
from gateway.conversation.commands import InputCommit, Resume, StageAttached
from gateway.conversation.config import SemanticVad, SessionPatch
from gateway.conversation.effects import CancelOrder, Close, CommitOrder, Mute, Order, PromptOrder, Replace

from .support import VAD_OFF, World, names
from .tale import HEARS, STAGES, Tale, asked

SPOKEN = ("llm", "talker", "vocoder")


@pytest.mark.behaviour("X3", "S2")
@pytest.mark.parametrize("stage", SPOKEN)
def test_a_reply_whose_stage_is_lost_ends_as_failed_and_the_next_is_made_by_its_successor(stage: str) -> None:
    tale = asked()
    tale.write("Well. ", last=False)
    tale.latents()
    tale.voiced(300)
    tale.arrive()
    before = tale.c.fence.epoch
    tale.lose(stage)
    assert (tale.done.status, tale.done.error_code) == ("failed", "stage_lost") and tale.performed(Mute)
    assert tale.c.fence.epoch == before + 1
    assert {order.stage for order in tale.performed(Order) if isinstance(order.body, CancelOrder)} == set(SPOKEN) - {stage}
    assert [effect.stage for effect in tale.performed(Replace)] == [stage] and tale.performed(Close) == []
    tale.respond()
    assert len(tale.orders(PromptOrder)) == 1, "the prompt waits for the stage"
    tale.place(stage)
    assert len(tale.orders(PromptOrder)) == 2
    tale.answer(("Now it works. ", 1200), ("All of it.", 600))
    tale.wait(2000)
    assert tale.done.status == "completed" and len(tale.of(events.ResponseDone)) == 2
    assert tale.history()[-1] == "Now it works. All of it."
    tale.check()


@pytest.mark.parametrize("stage", SPOKEN)
def test_a_loss_in_silence_costs_nothing(stage: str) -> None:
    tale = asked()
    tale.answer(("Yes.", 300))
    tale.wait(1000)
    tale.arrive()
    told = len(tale.of(events.Error))
    tale.lose(stage)
    tale.wait(500)
    tale.place(stage)
    tale.create("And?")
    tale.respond()
    tale.answer(("A longer one. ", 1300), ("Yes.", 400))
    tale.wait(2000)
    assert tale.done.status == "completed" and len(tale.of(events.Error)) == told
    assert [response.response.status for response in tale.of(events.ResponseDone)] == ["completed"] * 2


def test_positions_go_on_above_those_of_the_lost_placement() -> None:
    tale = asked()
    tale.write("Well. ", "So. ", last=False)
    tale.arrive()
    used = tale.positions["llm"]
    tale.lose("llm")
    tale.place("llm")
    assert tale.c.state.bases["llm"] == used == tale.positions["llm"]
    tale.respond()
    tale.answer(("Again.", 200))
    tale.arrive()
    assert tale.done.status == "completed"
    assert [relay.position for relay in tale.stages["talker"].relays if relay.edge == "llm"][-1] > used


@pytest.mark.behaviour("X3", "X16")
@pytest.mark.parametrize("stage", HEARS)
@pytest.mark.parametrize("during_ms", [0, 200])
def test_the_open_turn_is_heard_again_from_its_start(stage: str, during_ms: int) -> None:
    tale = Tale()
    tale.speak(2000)
    tale.decide("speech_started", 1500)
    tale.speak(500)
    tale.arrive()
    tale.lose(stage)
    (replace,) = tale.performed(Replace)
    assert replace.resume_after["client"] == 1500 * 24
    tale.speak(during_ms)
    tale.place(stage)
    tale.speak(300)
    tale.check()
    assert tale.stages[stage].heard_from <= 1500 * 24
    tale.decide("speech_started", 1480)
    tale.decide("speech_stopped", 2700)
    assert len(tale.of(events.SpeechStarted)) == 1 and tale.orders(CommitOrder)[-1].start_ms == 1500


@pytest.mark.behaviour("X3")
def test_words_that_are_awaited_are_asked_for_again_with_all_their_sound() -> None:
    tale = Tale(VAD_OFF)
    tale.speak(400)
    tale.do(InputCommit())
    tale.speak(300)
    tale.do(InputCommit())
    tale.arrive("asr", 1)
    tale.wait(tale.limits.transcript_timeout_ms - 1000)
    tale.lose("asr")
    assert tale.performed(Replace)[0].resume_after["client"] == 0
    tale.place("asr")
    tale.arrive()
    asked_for = [order.body for order in tale.stages["asr"].orders]
    assert [(body.start_ms, body.end_ms) for body in asked_for if isinstance(body, CommitOrder)] == [(0, 400), (400, 700)]
    tale.wait(tale.limits.transcript_timeout_ms - 1000)
    assert tale.of(events.TranscriptionFailed) == [], "it has its time anew"
    for text in ("One.", "Two."):
        tale.transcribe(text)
    assert [event.transcript for event in tale.of(events.TranscriptionCompleted)] == ["One.", "Two."]
    tale.check()


@pytest.mark.behaviour("X3")
def test_words_are_not_late_while_nobody_is_there_to_hear_them() -> None:
    tale = Tale(VAD_OFF)
    tale.speak(400)
    tale.do(InputCommit())
    tale.lose("asr")
    tale.speak(300)
    tale.do(InputCommit())
    tale.wait(2 * tale.limits.transcript_timeout_ms)
    assert tale.of(events.TranscriptionFailed) == []
    tale.place("asr")
    tale.arrive()
    tale.wait(tale.limits.transcript_timeout_ms - 1000)
    tale.transcribe("One.")
    assert [event.transcript for event in tale.of(events.TranscriptionCompleted)] == ["One."]
    tale.wait(1000)
    assert [event.code for event in tale.of(events.TranscriptionFailed)] == ["transcription_failed"], "of the second, in its time"
    tale.check()


def test_a_detector_that_is_lost_in_silence_hears_the_last_moment_again() -> None:
    tale = Tale()
    tale.speak(3000)
    tale.arrive()
    tale.lose("turn")
    assert tale.performed(Replace)[0].resume_after["client"] == 2500 * 24
    tale.place("turn")
    tale.check()


def test_a_turn_that_ends_while_the_recogniser_is_away_is_not_forgotten() -> None:
    tale = Tale()
    tale.speak(500)
    tale.decide("speech_started", 0)
    tale.lose("asr")
    tale.speak(300)
    tale.decide("speech_stopped", 700)
    assert tale.orders(CommitOrder, "asr") == []
    tale.place("asr")
    assert [(body.start_ms, body.end_ms) for body in tale.orders(CommitOrder, "asr")] == [(0, 700)]
    tale.check()


def test_what_a_lost_stage_misses_of_other_stages_leaves_no_gap() -> None:
    tale = Tale()
    tale.speak(300)
    tale.decide("speech_started", 0)
    tale.lose("asr")
    tale.decide("pause", 200)
    tale.place("asr")
    tale.decide("speech_resumed", 250)
    tale.check()
    assert tale.stages["asr"].marks["turn"] == 3


def test_an_update_that_a_lost_stage_was_to_judge_is_refused() -> None:
    tale = Tale()
    tale.update(turn_detection=SemanticVad(), answer=())
    tale.lose("turn")
    assert (tale.error.code, tale.c.state.updating) == ("update_refused", None)


def test_an_update_during_a_loss_waits_for_the_stage() -> None:
    tale = Tale()
    tale.lose("asr")
    tale.do(commands.SessionUpdate(patch=SessionPatch(instructions="New.")))
    assert tale.of(events.SessionUpdated) == []
    tale.tell("behind it")
    tale.place("asr")
    assert names([*tale.of(events.SessionUpdated), *tale.of(events.ItemAdded)]) == ["SessionUpdated", "ItemAdded"]
    assert tale.c.config.instructions == "New."
    tale.check()


def test_a_stage_that_is_lost_twice_is_placed_twice() -> None:
    tale = asked()
    tale.lose("llm")
    tale.place("llm")
    tale.lose("llm")
    tale.place("llm")
    tale.respond()
    tale.answer(("At last.", 200))
    assert tale.done.status == "completed" and len(tale.performed(Replace)) == 2


def test_a_placement_of_a_stage_that_is_not_lost_changes_nothing() -> None:
    world = World()
    assert world.do(commands.StagePlaced("llm")) == [] and world.c.state.lost == []


@pytest.mark.behaviour("X1", "X3")
@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_that_is_not_there_at_the_takeover_is_placed_anew(stage: str) -> None:
    tale = Tale()
    tale.speak(1000)
    tale.decide("speech_started", 800)
    tale.speak(200)
    tale.arrive()
    tale.die(lost=(stage,))
    assert [effect.stage for effect in tale.performed(Replace)] == [stage] and tale.c.state.lost == [stage]
    tale.place(stage)
    tale.decide("speech_stopped", 1100)
    tale.transcribe("Hello?")
    tale.answer(("Yes.", 300))
    assert tale.done.status == "completed"
    tale.check()
    if stage in HEARS:
        assert tale.stages[stage].heard_from <= 800 * 24, "the client said the open turn again"


def test_a_stage_that_was_being_placed_when_the_gateway_died_is_placed_by_the_next() -> None:
    tale = asked()
    tale.lose("vocoder")
    tale.die()
    assert [effect.stage for effect in tale.performed(Replace)] == ["vocoder", "vocoder"]
    tale.place("vocoder")
    tale.respond()
    tale.answer(("Yes.", 1700))
    tale.wait(2000)
    assert tale.done.status == "completed"


def test_a_takeover_without_any_stage_goes_on_with_all_placed_anew() -> None:
    tale = asked()
    tale.die(lost=STAGES)
    for stage in STAGES:
        tale.place(stage)
    tale.respond()
    tale.answer(("Here again.", 300))
    assert tale.done.status == "completed"


def test_resume_names_what_is_attached() -> None:
    attached = StageAttached("llm", 3, {"core": 1}, 1)
    assert Resume((attached,)).lost == () and Resume((attached,)).resends
