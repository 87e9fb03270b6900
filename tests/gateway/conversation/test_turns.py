"""Whole turns: spoken, typed, pushed; deferred, quick, silent."""

from __future__ import annotations

import msgspec
import pytest

from gateway.conversation import commands, events
from gateway.conversation.config import SemanticVad, ServerVad
from gateway.conversation.effects import ClearOrder, CommitOrder, PromptOrder

from .support import CONFIG, DEFERRING, TEXT, VAD_OFF, World, names

USER_TURN = ["SpeechStarted", "SpeechStopped", "InputCommitted", "ItemAdded", "ItemDone", "TranscriptionDelta", "TranscriptionCompleted"]
REPLY_BEGINS = ["ResponseCreated", "OutputItemAdded", "ItemAdded", "ContentPartAdded"]
SPOKEN_REPLY_ENDS = ["AudioDone", "TranscriptDone", "ContentPartDone", "OutputItemDone", "ItemDone", "ResponseDone", "RateLimits"]


@pytest.mark.behaviour("W11", "O1")
def test_spoken_turn_tells_the_canonical_sequence() -> None:
    world = World()
    item_id = world.ask("What is the capital of France?")
    world.answer(("Paris. ", 300), ("Of course.", 200))
    world.wait(2000)

    told = names(e.event for e in world.effects if hasattr(e, "event"))
    first_delta = told.index("TranscriptDelta")
    assert told[0] == "SessionCreated"
    assert told[1:first_delta] == USER_TURN + REPLY_BEGINS
    assert set(told[first_delta : -len(SPOKEN_REPLY_ENDS)]) == {"TranscriptDelta", "AudioDelta"}
    assert told[-len(SPOKEN_REPLY_ENDS) :] == SPOKEN_REPLY_ENDS

    (message,) = world.done.output
    assert (world.done.status, message.status) == ("completed", "completed")
    assert message.content[0].kind == "output_audio" and message.content[0].transcript == "Paris. Of course."
    assert world.of(events.SpeechStarted)[0].item_id == world.of(events.SpeechStopped)[0].item_id == item_id
    assert world.sent_ms == 500


@pytest.mark.behaviour("O1")
def test_message_in_progress_is_empty_and_its_part_is_audio() -> None:
    world = World()
    world.ask()
    world.write("Yes.", last=False)
    (added,) = world.of(events.OutputItemAdded)
    assert added.item.status == "in_progress" and added.item.content == ()
    assert world.of(events.ContentPartAdded)[0].part == type(world.of(events.ContentPartAdded)[0].part)("output_audio", transcript="")


@pytest.mark.behaviour("W11")
def test_items_name_the_one_before_them_and_the_first_names_none() -> None:
    world = World()
    item_id = world.ask()
    world.answer(("Yes.", 200))
    first, reply = (event for event in world.of(events.ItemAdded))
    assert first.previous_item_id is None and world.of(events.InputCommitted)[0].previous_item_id is None
    assert reply.previous_item_id == item_id


def test_commit_asks_the_recogniser_for_the_span_that_was_spoken() -> None:
    world = World()
    item_id = world.utter()
    (order,) = world.orders(CommitOrder)
    started, stopped = world.of(events.SpeechStarted)[0], world.of(events.SpeechStopped)[0]
    assert (order.item_id, order.start_ms, order.end_ms) == (item_id, started.audio_start_ms, stopped.audio_end_ms)


def test_prompt_is_the_conversation_with_instructions_first() -> None:
    world = World(msgspec.structs.replace(CONFIG, instructions="Be brief."))
    world.ask("One?")
    world.answer(("One.", 200))
    world.wait(1000)
    world.ask("Two?")
    assert world.prompted() == [("system", "Be brief."), ("user", "One?"), ("assistant", "One."), ("user", "Two?")]


def test_typed_turn_is_answered_on_response_create() -> None:
    world = World()
    item = world.create("Hello there.")
    assert names(world.respond()) == ["ResponseCreated"]
    assert world.prompted() == [("user", "Hello there.")]
    world.answer(("Hi.", 200))
    assert world.done.status == "completed" and world.c.history.order == [item.id, world.done.output[0].id]


@pytest.mark.behaviour("W12")
def test_text_modality_has_no_sound_and_never_reaches_the_talker() -> None:
    world = World(TEXT)
    world.ask()
    told = names(world.write("It is ", "four."))
    assert told == ["OutputItemAdded", "ItemAdded", "ContentPartAdded", "TextDelta", "TextDelta", "TextDone", "ContentPartDone",
                    "OutputItemDone", "ItemDone", "ResponseDone", "RateLimits"]  # fmt: skip
    assert world.done.output[0].content[0].kind == "output_text" and world.done.output[0].text == "It is four."
    assert world.relays("talker") == []


@pytest.mark.behaviour("W12")
def test_sound_that_comes_for_a_text_reply_never_leaves() -> None:
    world = World(TEXT)
    world.ask()
    world.write("It is", last=False)
    world.voiced(200)
    assert world.of(events.AudioDelta) == [] and world.c.state.consumed["vocoder"] == 2


@pytest.mark.behaviour("T2")
def test_push_to_talk_answers_only_when_asked() -> None:
    world = World(VAD_OFF)
    world.say(400)
    told = world.do(commands.InputCommit())
    assert names(told) == ["InputCommitted", "ItemAdded", "ItemDone"]
    world.transcribe("Good morning.")
    assert world.c.responses.live is None
    world.respond()
    assert world.prompted() == [("user", "Good morning.")]


@pytest.mark.behaviour("T2")
def test_push_to_talk_may_ask_before_the_words_are_known() -> None:
    world = World(VAD_OFF)
    world.say(400)
    world.do(commands.InputCommit())
    assert names(world.respond()) == ["ResponseCreated"]
    assert world.orders(PromptOrder) == []
    world.transcribe("Good morning.")
    assert world.prompted() == [("user", "Good morning.")]
    world.answer(("Morning.", 200))
    world.wait(2000)
    assert len(world.of(events.ResponseDone)) == 1


@pytest.mark.behaviour("T2", "O1")
def test_a_turn_is_answered_once_when_the_client_asks_before_its_words() -> None:
    world = World()
    world.utter()
    world.respond()
    world.transcribe("Anybody there?")
    world.answer(("Yes.", 200))
    world.wait(3000)
    assert len(world.of(events.ResponseCreated)) == 1


def test_commit_during_detected_speech_is_answered_and_resets_the_detector() -> None:
    world = World()
    world.say(300)
    world.decide("speech_started", 100)
    world.say(300)
    told = world.do(commands.InputCommit())
    assert names(told) == ["InputCommitted", "ItemAdded", "ItemDone"]
    assert told[0].item_id == world.of(events.SpeechStarted)[0].item_id
    assert world.orders(ClearOrder, "turn") and not world.orders(ClearOrder, "asr")
    assert names(world.decide("speech_stopped", 500, 600)) == []
    world.transcribe("Now.")
    assert world.c.responses.live is not None


def test_commit_needs_a_tenth_of_a_second() -> None:
    world = World(VAD_OFF)
    world.append(99)
    world.do(commands.InputCommit(event_id="e1"))
    assert (world.error.code, world.error.client_event_id) == ("input_audio_buffer_commit_empty", "e1")
    world.append(1)
    assert names(world.do(commands.InputCommit())) == ["InputCommitted", "ItemAdded", "ItemDone"]
    world.do(commands.InputCommit())
    assert world.error.code == "input_audio_buffer_commit_empty"


@pytest.mark.behaviour("U41")
def test_the_next_utterance_begins_where_the_last_one_ended() -> None:
    world = World()
    world.say(900)
    world.decide("speech_started", 100)
    world.decide("speech_stopped", 600)
    world.decide("speech_started", 450)
    world.say(500)
    world.decide("speech_stopped", 1200)
    spans = [(order.start_ms, order.end_ms) for order in world.orders(CommitOrder)]
    assert spans == [(100, 600), (600, 1200)]
    assert len({event.item_id for event in world.of(events.SpeechStarted)}) == 2
    assert world.orders(ClearOrder) == [], "a stop does not reset the detector"


@pytest.mark.behaviour("U41", "T4")
def test_clear_forgets_the_open_utterance_and_keeps_the_clock() -> None:
    world = World()
    world.say(500)
    world.decide("speech_started", 100)
    assert names(world.do(commands.InputClear())) == ["InputCleared"]
    assert [len(world.orders(ClearOrder, stage)) for stage in ("turn", "asr")] == [1, 1]
    assert names(world.decide("speech_stopped", 400, 500)) == [], "made of what was cleared"
    world.say(300)
    assert world.relays("asr")[-1].input_generation == world.relays("turn")[-1].input_generation == 1
    world.decide("speech_started", 480)
    assert world.of(events.SpeechStarted)[-1].audio_start_ms == 500


@pytest.mark.parametrize("close", [commands.InputClear(), commands.InputCommit()])
def test_a_decision_made_of_audio_that_is_committed_or_cleared_comes_too_late(close: commands.ClientCommand) -> None:
    world = World()
    world.say(500)
    world.do(close)
    assert names(world.decide("speech_started", 100, 500)) == []
    world.say(20)
    assert names(world.decide("speech_started", 300, 520)) == ["SpeechStarted"]
    assert world.of(events.SpeechStarted)[0].audio_start_ms == 500


def test_clear_lets_a_reply_that_waited_for_the_user_begin() -> None:
    world = World()
    world.utter()
    world.say(200)
    world.decide("speech_started", 800)
    world.transcribe("First.")
    assert world.c.responses.live is None
    assert names(world.do(commands.InputClear())) == ["InputCleared", "ResponseCreated"]


def test_two_quick_turns_are_answered_together() -> None:
    world = World()
    first, second = world.utter(), world.utter()
    world.transcribe("One,", first)
    assert world.orders(PromptOrder) == []
    world.transcribe("two.", second)
    assert world.prompted() == [("user", "One,"), ("user", "two.")]
    assert len(world.of(events.ResponseCreated)) == 1


def test_noise_without_words_makes_no_reply() -> None:
    world = World()
    world.utter()
    told = world.transcribe("  ")
    assert "ResponseCreated" not in names(told) and world.of(events.TranscriptionCompleted)[-1].transcript == "  "
    assert world.c.quiet


@pytest.mark.behaviour("O2")
def test_a_response_to_noise_alone_ends_empty() -> None:
    world = World(VAD_OFF)
    world.say(200)
    world.do(commands.InputCommit())
    world.respond()
    world.transcribe("")
    assert (world.done.status, world.done.output) == ("completed", ()) and world.orders(PromptOrder) == []


def test_a_missing_transcript_is_told_and_nobody_waits_for_ever() -> None:
    world = World()
    first = world.utter()
    second = world.utter()
    world.transcribe("Second.", second)
    assert world.c.responses.live is None
    world.wait(world.limits.transcript_timeout_ms)
    (failed,) = world.of(events.TranscriptionFailed)
    assert failed.item_id == first and world.prompted() == [("user", "Second.")]
    world.transcribe("too late", first)
    assert world.c.history.items[first].text == ""


@pytest.mark.behaviour("T3")
def test_without_interruption_the_reply_waits_for_the_live_one() -> None:
    world = World(DEFERRING)
    world.ask("First?")
    world.write("Well.", last=False)
    world.ask("Second?")
    assert len(world.of(events.ResponseCreated)) == 1 and world.of(events.ResponseDone) == []
    world.answer((" So.", 200))
    world.wait(1000)
    assert [response.response.status for response in world.of(events.ResponseDone)] == ["completed"]
    assert len(world.of(events.ResponseCreated)) == 2
    assert world.prompted() == [("user", "First?"), ("assistant", "Well. So."), ("user", "Second?")]


def test_a_turn_during_a_reply_does_not_change_the_label_of_the_reply() -> None:
    world = World(DEFERRING)
    world.ask("First?")
    world.write("Well.", last=False)
    world.utter()
    world.write(" So.")
    assert {(relay.epoch, relay.turn, relay.response_id) for relay in world.relays("talker")} == {
        (1, 1, world.of(events.ResponseCreated)[0].response.id)
    }


@pytest.mark.behaviour("T3")
@pytest.mark.parametrize("turn_detection", [ServerVad(create_response=False), SemanticVad(create_response=False)])
def test_without_create_response_turns_are_told_and_kept(turn_detection: ServerVad | SemanticVad) -> None:
    world = World(msgspec.structs.replace(CONFIG, turn_detection=turn_detection))
    world.ask("Hello?")
    assert world.c.responses.live is None and world.of(events.SpeechStopped)
    world.respond()
    assert world.prompted() == [("user", "Hello?")]


def test_transcript_deltas_are_never_taken_back_and_join_to_the_whole() -> None:
    world = World()
    world.say(300)
    world.decide("speech_started", 0)
    for text in ("What", "What is", "What is the", "What is the cat", "What is the cap"):
        world.partial(text)
    assert "".join(event.delta for event in world.of(events.TranscriptionDelta)) == "What is the "
    world.say(300)
    world.decide("speech_stopped", 500)
    world.transcribe("What is the capital?")
    assert "".join(event.delta for event in world.of(events.TranscriptionDelta)) == "What is the capital?"


def test_a_partial_of_the_last_utterance_is_not_told_as_the_next_ones() -> None:
    world = World()
    world.utter()
    world.say(100)
    world.decide("speech_started", 750)
    for _ in range(2):
        world.transcribe("old words ", final=False, audio_start_ms=0)
    assert world.of(events.TranscriptionDelta) == []
    for _ in range(2):
        world.partial("new words")
    assert world.of(events.TranscriptionDelta)[-1].delta == "new words"


def test_words_are_kept_but_not_told_without_transcription() -> None:
    world = World(msgspec.structs.replace(CONFIG, transcription=None))
    world.ask("Secret?")
    assert not {"TranscriptionDelta", "TranscriptionCompleted"} & set(names(e.event for e in world.effects if hasattr(e, "event")))
    assert world.prompted() == [("user", "Secret?")]


IDLE = msgspec.structs.replace(CONFIG, turn_detection=ServerVad(idle_timeout_ms=5000))


@pytest.mark.behaviour("T5")
def test_idle_time_runs_from_the_end_of_what_is_heard() -> None:
    world = World(IDLE)
    world.ask()
    world.answer(("Yes?", 800))
    ended = world.now
    assert world.done.status == "completed"
    world.wait(5799)
    assert world.of(events.IdleTimeout) == []
    told = world.wait(1)
    assert names(told) == ["IdleTimeout", "InputCommitted", "ItemAdded", "ItemDone", "ResponseCreated"]
    assert world.now == ended + 5800 and told[1].item_id == told[0].item_id
    assert world.orders(CommitOrder)[-1].item_id != told[0].item_id, "silence is not recognised"


@pytest.mark.behaviour("T5")
def test_speech_stops_the_idle_time_and_noise_starts_it_anew() -> None:
    world = World(IDLE)
    world.ask()
    world.answer(("Yes?", 200))
    world.wait(4000)
    world.utter()
    world.wait(3000)
    assert world.of(events.IdleTimeout) == []
    world.transcribe("")
    world.wait(4999)
    assert world.of(events.IdleTimeout) == []
    world.wait(1)
    assert len(world.of(events.IdleTimeout)) == 1


def test_idle_time_begins_with_the_first_response() -> None:
    world = World(IDLE)
    world.say(300)
    world.wait(20_000)
    assert world.of(events.IdleTimeout) == []


def test_idle_timeout_may_be_switched_off_while_it_runs() -> None:
    world = World(IDLE)
    world.ask()
    world.answer(("Yes?", 200))
    world.update(turn_detection=ServerVad())
    world.wait(20_000)
    assert world.of(events.IdleTimeout) == []
