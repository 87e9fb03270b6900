"""A model that decides by itself: its turns are responses, and nothing that the user does but an interruption ends them."""

from __future__ import annotations

import msgspec
import pytest

from gateway.conversation import commands, events
from gateway.conversation.commands import FinishOut, OpaqueOut, TextOut, Tick
from gateway.conversation.config import SessionConfig
from gateway.conversation.effects import CancelOrder, CommitOrder, ContinueOrder, PromptOrder, Relay
from gateway.conversation.items import Item
from gateway.conversation.limits import Limits
from gateway.conversation.policy import stage_config
from gateway.conversation.recap import recap

from .duplex import CONFIG, DUPLEX, NO_VAD, WORDY, YIELDING, Duplex
from .support import RATE, names, pcm, user_text


def spoken(world: Duplex) -> None:
    """A whole turn of two units, of which all sound is on its way."""
    world.say(1040)
    world.speaks("Hello ", begins=True)
    world.sings()
    world.say(1000)
    world.speaks("there.", ends=True)
    world.sings()
    world.sings(last=True)


def test_a_turn_of_the_model_is_a_response() -> None:
    world = Duplex()
    world.say(1040)
    world.listens()
    world.say(1000)
    begun = world.begins()
    assert names(begun) == ["ResponseCreated", "UnitDecided"]
    assert names(world.thinks(TextOut("Hello "))) == ["OutputItemAdded", "ItemAdded", "ContentPartAdded", "TranscriptDelta"]
    assert names(world.thought()) == []
    world.say(1000)
    told = world.speaks("there.", ends=True)
    assert names(told) == ["UnitDecided", "TranscriptDelta", "UnitDecided"], "the model is done; its sound is not"
    world.sings()
    world.sounds(2000)
    assert world.c.responses.live is not None
    world.sounds(0, last=True)
    world.wait(2000)
    done = world.done
    assert done.status == "completed" and done.output[0].content[0].transcript == "Hello there."
    assert (done.usage.input_text, done.usage.output_text) == (20, 4)
    assert world.decisions == [(0, "listen"), (1, "speak"), (2, "speak"), (2, "turn_end")]
    assert {event.response_id for event in world.of(events.UnitDecided)} == {None, done.id}
    assert world.history() == ["Hello there."] and world.sent_ms == 2000


def test_what_is_made_for_the_next_stage_goes_there_under_the_models_label() -> None:
    world = Duplex()
    spoken(world)
    passed = [(r.response_id, r.turn, r.last, r.payload is None) for r in world.relays("singer")]
    assert passed == [("t1", 1, False, False), ("t1", 1, True, False)], "the end of its text is not the end of its thought"
    assert [(r.response_id, r.turn, r.last) for r in world.relays("sounder")] == [("t1", 1, False), ("t1", 1, False), ("t1", 1, True)]
    assert not world.orders(PromptOrder), "nobody asks it to speak"


def test_a_model_is_told_the_epoch_that_it_works_in() -> None:
    world = Duplex()
    assert world.orders(CancelOrder) == [CancelOrder(0, 1, "placed")]
    assert [effect.stage for effect in world.effects if hasattr(effect, "body")] == ["seer"]
    assert world.begins(epoch=0) == [], "what it made before it knew is of no epoch"
    assert world.c.responses.live is None


@pytest.mark.behaviour("T4")
def test_the_end_of_the_users_speech_ends_no_turn_of_the_model() -> None:
    world = Duplex(YIELDING)
    world.say(1040)
    world.begins()
    world.thinks(TextOut("I see. "))
    item_id = world.utter()
    assert world.c.responses.live is not None and world.c.fence.epoch == 1
    committed = world.of(events.InputCommitted)[-1]
    assert committed.item_id == item_id and not world.c.dialog.waiting(), "no words are awaited where nobody writes them"
    item = world.c.history.items[item_id]
    assert item.role == "user" and item.content[0].transcript is None
    assert not world.orders(CommitOrder) and not world.of(events.TranscriptionFailed)
    world.wait(20_000)
    assert not world.of(events.TranscriptionFailed) and not world.of(events.Error)
    before = world.heard_ms
    world.do(commands.InputClear())
    assert world.heard_ms == before, "the clock goes on"
    world.thought(ends=True)
    world.sounds(500, last=True)
    world.wait(2000)
    assert world.done.status == "completed"
    assert world.history() == ["I see. ", ""]


def test_with_a_recognizer_the_users_words_are_told() -> None:
    world = Duplex(graph=WORDY)
    item_id = world.utter()
    assert world.orders(CommitOrder, "asr")
    world.transcribe("What is it?", item_id)
    assert world.history() == ["What is it?"] and world.c.responses.live is None and not world.c.responses.owed


def test_the_user_interrupts_and_the_history_keeps_what_was_heard() -> None:
    world = Duplex()
    world.say(1040)
    world.speaks("One two three. ", begins=True)
    world.sings()
    world.sounds(1000)
    world.say(1000)
    world.speaks("Four five six. ")
    world.sings()
    world.sounds(1000)
    world.wait(100)
    told = world.decide("speech_started", world.heard_ms - 300)
    assert names(told)[0] == "SpeechStarted" and world.done.status == "cancelled" and world.done.reason == "turn_detected"
    cancels = [order for order in world.effects if getattr(order, "body", None) == CancelOrder(1, 2, "turn_detected")]
    assert [order.stage for order in cancels] == ["seer", "singer", "sounder"]
    item = world.c.history.items[world.done.output[0].id]
    assert item.status == "incomplete" and item.content[0].transcript == "One two three."
    late = world._decides("speak", "t1", None, epoch=1) + world.thinks(TextOut("late"), epoch=1)
    assert late == [] and world.c.responses.live is None, "nothing of the old turn is told"


def test_the_client_interrupts_and_the_model_goes_on_with_another_turn() -> None:
    world = Duplex()
    spoken(world)
    world.sounds(1500)
    world.do(commands.ResponseCancel())
    assert world.done.reason == "client_cancelled"
    world.listens()
    spoken(world)
    world.sounds(500, last=True)
    world.wait(1000)
    assert world.done.status == "completed" and world.of(events.ResponseCreated)[-1].response.id == world.done.id


def test_a_turn_that_begins_while_the_last_one_still_sounds_waits_for_its_end() -> None:
    world = Duplex()
    spoken(world)
    world.sounds(3000, last=True)
    first = world.c.responses.live
    assert first is not None
    world.say(1000)
    assert names(world.begins()) == ["UnitDecided"], "the client has one response at a time"
    world.thinks(TextOut("And "))
    world.thinks(TextOut("more. "))
    world.thought()
    world.sings()
    assert [r.response_id for r in world.relays("sounder")][-1] == "t2", "but its sound is made already"
    world.sounds(800)
    assert not [event for event in world.of(events.TranscriptDelta) if "more" in event.delta]
    told = world.wait(1500)
    at = names(told).index("ResponseDone")
    assert names(told)[at : at + 7] == [
        "ResponseDone", "RateLimits", "ResponseCreated", "OutputItemAdded", "ItemAdded", "ContentPartAdded", "TranscriptDelta",
    ]  # fmt: skip
    assert world.of(events.TranscriptDelta)[-1].delta == "And more. "
    world.say(1000)
    world.speaks("Done.", ends=True)
    world.sings(last=True)
    world.sounds(600, last=True)
    world.wait(3000)
    assert [event.response.status for event in world.of(events.ResponseDone)] == ["completed", "completed"]
    assert world.history() == ["Hello there.", "And more. Done."]
    assert [event.response_id for event in world.of(events.UnitDecided)][-1] == world.done.id


def test_an_interruption_takes_the_waiting_turn_with_it() -> None:
    world = Duplex()
    spoken(world)
    world.sounds(3000, last=True)
    world.say(1000)
    world.begins()
    world.decide("speech_started", world.heard_ms - 100)
    assert [event.response.status for event in world.of(events.ResponseDone)] == ["cancelled"]
    assert len(world.of(events.ResponseCreated)) == 1 and not world.c.responses.coming
    world.wait(3000)
    assert world.c.responses.live is None and not world.of(events.Error)


def test_a_written_turn_ends_with_its_text_and_is_not_spoken() -> None:
    world = Duplex(msgspec.structs.replace(CONFIG, output_modalities=("text",)))
    world.say(1040)
    world.speaks("Hello ", begins=True)
    world.say(1000)
    world.speaks("there.", ends=True)
    assert world.done.status == "completed" and world.done.output[0].content[0].text == "Hello there."
    assert not world.relays("singer") and not world.of(events.AudioDelta)


def test_a_failed_stage_ends_the_turn_everywhere_and_the_next_works() -> None:
    world = Duplex()
    world.say(1040)
    world.speaks("Hello ", begins=True)
    world.chunk("singer", last=True, finish=FinishOut("failed"), response_id="t1", turn=1)
    assert world.done.status == "failed" and world.done.error_code == "stage_failed" and world.c.fence.epoch == 2
    assert world.c.native.turn == 0
    world.say(1000)
    world.listens()
    spoken(world)
    world.sounds(500, last=True)
    world.wait(1500)
    assert world.done.status == "completed"


def test_a_unit_that_fails_while_it_listens_is_told_and_ends_nothing() -> None:
    world = Duplex()
    world.say(1040)
    world.chunk("seer", last=True, finish=FinishOut("failed", error_message="no"), response_id="")
    assert world.error.code == "stage_failed" and not world.c.state.closing
    world.chunk("seer", last=True, finish=FinishOut("failed", error_message="too hot", error_param="heat"), response_id="")
    assert (world.error.code, world.error.param) == ("input_refused", "session.model_options.temperature")


@pytest.mark.behaviour("O2")
def test_listening_makes_no_response() -> None:
    world = Duplex()
    for _ in range(5):
        world.say(1000)
        assert names(world.listens()) == ["UnitDecided"]
    assert [decision for _, decision in world.decisions] == ["listen"] * 5
    assert not world.of(events.ResponseCreated)
    world.thinks(TextOut("stray"))
    assert not world.of(events.TranscriptDelta), "text of a turn that nobody began"


def test_units_are_counted_on_over_a_repeat_and_over_placements() -> None:
    world = Duplex()
    world.say(1040)
    world.listens()
    world.do(commands.StageUnit("seer", 0))
    world.do(commands.StageUnit("turn", 9))
    assert world.c.native.units == 1
    world.do(commands.StageLost("seer", "gone"))
    world.do(commands.StagePlaced("seer"))
    world.units = 0
    world.say(1000)
    world.listens()
    assert world.decisions == [(0, "listen"), (1, "listen")]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (commands.ResponseCreate(), "native_unsupported"),
        (commands.ItemCreate(item=user_text("hi", "x")), "native_unsupported"),
        (commands.ItemCreate(item=Item("x", "function_call_output", call_id="c", output="1")), "native_unsupported"),
        (commands.ResponseCancel(), "response_cancel_not_active"),
    ],
)
def test_what_a_model_that_decides_by_itself_cannot_do_is_refused_by_type(command: commands.ClientCommand, code: str) -> None:
    world = Duplex()
    told = world.do(msgspec.structs.replace(command, event_id="mine"))
    assert names(told) == ["Error"]
    assert (world.error.code, world.error.client_event_id) == (code, "mine")
    assert not world.history()


def test_without_a_detector_the_model_alone_ends_its_turns() -> None:
    world = Duplex(NO_VAD)
    spoken(world)
    world.sounds(500)
    assert world.decide("speech_started", 0, world.heard_ms)
    assert world.c.responses.live is not None, "nobody asked the detector to interrupt"


def test_a_recap_has_the_newest_whole_messages() -> None:
    world = Duplex(graph=WORDY)
    item_id = world.utter()
    assert recap(world.c.history, 100) == ""
    spoken(world)
    world.sounds(500, last=True)
    world.wait(1500)
    assert recap(world.c.history, 100) == "Hello there."
    world.transcribe("What is it?", item_id)
    assert recap(world.c.history, 100) == "user: What is it?\nassistant: Hello there."
    assert recap(world.c.history, 30) == "assistant: Hello there."
    assert recap(world.c.history, 23) == "assistant: Hello there." and recap(world.c.history, 22) == ""


def test_what_stages_are_told_is_what_the_profile_says() -> None:
    told = {stage: stage_config(DUPLEX, stage, CONFIG) for stage in DUPLEX.stages}
    assert told["seer"] == {"mode": "duplex", "system": "Be kind."}
    assert told["singer"] == {} and told["sounder"] == {}
    assert told["turn"]["mode"] == "server_vad"


def test_time_alone_changes_nothing_while_the_model_listens() -> None:
    world = Duplex()
    world.say(3000)
    world.wait(60_000)
    world.do(Tick())
    assert not world.orders(ContinueOrder)
    assert not [effect for effect in world.effects if isinstance(effect, Relay) and effect.edge == "core"]
    world.thinks(OpaqueOut("thought"))
    assert not world.relays("singer"), "of no turn"


@pytest.mark.parametrize("config", [CONFIG, NO_VAD], ids=["detector", "none"])
def test_what_the_model_heard_is_not_pending_however_long_the_conversation(config: SessionConfig) -> None:
    world = Duplex(config, limits=Limits(max_pending_input_bytes=len(pcm(2000))))
    for _ in range(10):
        world.say(1000)
    assert not world.of(events.Error) and sum(relay.payload.samples for relay in world.relays("seer")) == 10 * RATE
