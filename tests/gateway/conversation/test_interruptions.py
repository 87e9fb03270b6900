"""Barge-in, cancel and clear: what stops, in which order, and what the history keeps."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.conversation import commands, events
from gateway.conversation.commands import AudioOut, OpaqueOut, TextOut
from gateway.conversation.effects import Ack, CancelOrder, CommitOrder, Emit, Grant, Mute, Order, PromptOrder, Relay

from .support import GRAPH, RATE, TEXT, VAD_OFF, World, names, pcm

SENTENCES = (("One is here. ", 1000), ("Two is here. ", 1000), ("Three is here.", 1000))


def speaking(world: World) -> World:
    """A reply of three seconds, 2.3 s of which left and 1.3 s were heard."""
    world.ask("Tell me three things.")
    world.answer(*SENTENCES)
    world.wait(1300)
    return world


def barge_in(world: World) -> list[events.Event]:
    end = world.c.input.end_ms(world.c.config.input_format)
    world.say(100)
    return world.decide("speech_started", end)


@pytest.mark.behaviour("U37", "U38", "W25", "X16")
def test_barge_in_mutes_then_raises_the_epoch_then_tells_the_client() -> None:
    world = speaking(World())
    world.say(100)
    before, epoch = len(world.effects), world.c.fence.epoch
    world.decide("speech_started", 700)
    steps = [e.event if isinstance(e, Emit) else e.body if isinstance(e, Order) else e for e in world.effects[before:]]
    assert isinstance(steps[0], Relay), "the recogniser hears of the decision, too"
    steps = [step for step in steps if not isinstance(step, Relay | Grant | Ack)]
    assert names(steps[:5]) == ["Mute", "SpeechStarted", "CancelOrder", "CancelOrder", "CancelOrder"]
    cancels = [e for e in world.effects[before:] if isinstance(e, Order)]
    assert [order.stage for order in cancels] == list(GRAPH.response_stages)
    assert {(o.body.cancelled_epoch, o.body.next_epoch) for o in cancels if isinstance(o.body, CancelOrder)} == {(epoch, epoch + 1)}
    assert world.c.fence.epoch == epoch + 1
    assert names(steps[5:]) == [
        "AudioDone",
        "TranscriptDone",
        "ContentPartDone",
        "OutputItemDone",
        "ItemDone",
        "ResponseDone",
        "RateLimits",
    ]
    assert (world.done.status, world.done.reason) == ("cancelled", "turn_detected")


@pytest.mark.behaviour("O4", "F9", "F4", "O3")
def test_nothing_of_the_cancelled_epoch_leaves_whatever_still_comes() -> None:
    world = speaking(World())
    old = world.c.responses.live
    assert old is not None
    label: dict[str, Any] = {"epoch": old.epoch, "response_id": old.id}
    barge_in(world)
    before, relayed = world.c.state.seq, len(world.relays("vocoder"))
    audio = AudioOut(pcm(100, 2), RATE // 10, RATE)
    world.chunk("llm", TextOut("More."), **label)
    world.chunk("llm", last=True, **label)
    world.chunk("talker", OpaqueOut("latents"), **label)
    world.chunk("vocoder", audio, **label)
    world.chunk("vocoder", last=True, **label)
    assert world.c.state.seq == before and len(world.relays("vocoder")) == relayed
    assert world.c.state.consumed["vocoder"] == world.positions["vocoder"], "it is acknowledged all the same"
    world.say(300)
    world.decide("speech_stopped", 1000)
    world.transcribe("Stop. What now?")
    assert world.c.responses.live is not None and world.c.responses.live.id != old.id
    world.chunk("vocoder", audio, **label)
    assert len(world.of(events.ResponseDone)) == 1


@pytest.mark.behaviour("U37")
def test_history_keeps_what_was_heard_up_to_a_sentence_end_and_the_users_words() -> None:
    world = speaking(World())
    assert world.sent_ms == 2300
    barge_in(world)
    world.say(300)
    world.decide("speech_stopped", 1050)
    world.transcribe("Stop.")
    assert world.history() == ["Tell me three things.", "One is here.", "Stop."]
    assert world.prompted() == [("user", "Tell me three things."), ("assistant", "One is here."), ("user", "Stop.")]
    item = world.c.history.items[world.c.history.order[1]]
    assert (item.status, item.content[0].audio_ms) == ("incomplete", 1400)
    assert world.of(events.ItemDone)[1].item == item, "the conversation's item is told as it is kept"
    assert world.done.output[0].text == "One is here. Two is here. Three is here.", "the response is told as it was made"


def test_barge_in_before_any_sound_leaves_an_empty_answer() -> None:
    world = World()
    world.ask("Well?")
    world.write("It is", last=False)
    barge_in(world)
    assert world.history() == ["Well?", ""] and world.done.status == "cancelled"
    assert world.of(events.AudioDone) == []


def test_barge_in_before_any_word_leaves_no_answer() -> None:
    world = World()
    world.ask("Well?")
    barge_in(world)
    assert world.history() == ["Well?"] and (world.done.status, world.done.output) == ("cancelled", ())


def test_barge_in_after_generation_cuts_what_the_client_still_plays() -> None:
    world = World()
    world.ask("Say two things.")
    world.answer(("One thing. ", 500), ("Two things.", 400))
    assert world.done.status == "completed"
    world.wait(600)
    epoch = world.c.fence.epoch
    told = barge_in(world)
    assert names(told) == ["SpeechStarted"] and world.c.fence.epoch == epoch
    assert world.history() == ["Say two things.", "One thing."]
    assert world.c.history.items[world.c.history.order[1]].content[0].audio_ms == 700


def test_speech_after_everything_was_heard_changes_nothing() -> None:
    world = World()
    world.ask("Say two things.")
    world.answer(("One thing. ", 500), ("Two things.", 400))
    world.wait(900)
    barge_in(world)
    assert world.history() == ["Say two things.", "One thing. Two things."]


def test_barge_in_cuts_every_reply_that_was_not_heard() -> None:
    world = World(VAD_OFF)
    world.create("First.")
    world.respond()
    world.answer(("One. ", 300), ("Two.", 600))
    world.create("Second.")
    world.respond()
    world.answer(("Three.", 100))
    world.wait(400)
    world.do(commands.OutputClear())
    assert world.history() == ["First.", "One.", "Second.", ""]


def test_the_interrupting_words_reach_the_recogniser_whole() -> None:
    world = speaking(World())
    relayed = sum(r.payload.samples for r in world.relays("asr") if r.edge == "client")
    start = world.c.input.end_ms(world.c.config.input_format)
    world.say(200)
    world.decide("speech_started", start)
    world.say(400)
    world.decide("speech_stopped", start + 500)
    assert sum(r.payload.samples for r in world.relays("asr") if r.edge == "client") - relayed == 600 * RATE // 1000
    assert {r.input_generation for r in world.relays("asr")} == {0}, "a barge-in drops no input"
    assert world.orders(CommitOrder)[-1].start_ms == start


@pytest.mark.behaviour("W25")
def test_cancel_by_the_client() -> None:
    world = speaking(World())
    before = len(world.effects)
    told = world.do(commands.ResponseCancel())
    assert names(told)[-2:] == ["ResponseDone", "RateLimits"] and (world.done.status, world.done.reason) == (
        "cancelled",
        "client_cancelled",
    )
    assert isinstance(world.effects[before], Mute)
    assert len(world.orders(CancelOrder)) == len(GRAPH.response_stages)
    assert world.history() == ["Tell me three things.", "One is here."]


def test_cancel_names_the_live_response_or_none() -> None:
    world = speaking(World())
    assert names(world.do(commands.ResponseCancel(response_id="resp_other", event_id="e1"))) == ["Error"]
    assert (world.error.code, world.error.param, world.error.client_event_id) == ("response_cancel_not_active", "response_id", "e1")
    live = world.c.responses.live
    assert live is not None
    world.do(commands.ResponseCancel(response_id=live.id))
    assert world.done.status == "cancelled"


@pytest.mark.behaviour("U39", "F2")
def test_the_first_cause_wins_and_the_second_cancel_is_a_plain_refusal() -> None:
    world = speaking(World())
    epoch = world.c.fence.epoch
    world.do(commands.ResponseCancel())
    told = barge_in(world)
    assert names(told) == ["SpeechStarted"] and world.done.reason == "client_cancelled"
    assert names(world.do(commands.ResponseCancel())) == ["Error"] and world.error.code == "response_cancel_not_active"
    assert len(world.of(events.ResponseDone)) == 1 and world.c.fence.epoch == epoch + 1


@pytest.mark.behaviour("U39")
def test_barge_in_wins_over_a_later_cancel() -> None:
    world = speaking(World())
    barge_in(world)
    assert names(world.do(commands.ResponseCancel())) == ["Error"] and world.done.reason == "turn_detected"


@pytest.mark.behaviour("U39", "M2")
def test_completion_wins_over_a_later_cancel() -> None:
    world = World()
    world.ask()
    world.answer(("Yes.", 200))
    world.do(commands.ResponseCancel())
    assert world.error.code == "response_cancel_not_active" and world.done.status == "completed"


@pytest.mark.behaviour("F10", "O3")
def test_the_next_response_is_untouched_by_the_cancelled_ones_end() -> None:
    world = speaking(World())
    old = world.c.responses.live
    assert old is not None
    world.do(commands.ResponseCancel())
    world.create("Again, please.")
    world.respond()
    world.chunk("llm", last=True, epoch=old.epoch, response_id=old.id)
    world.chunk("vocoder", last=True, epoch=old.epoch, response_id=old.id)
    assert world.c.responses.live is not None and len(world.of(events.ResponseDone)) == 1
    world.answer(("Again.", 200))
    assert world.done.status == "completed" and world.done.id != old.id
    assert world.orders(PromptOrder)[-1].epoch == world.c.fence.epoch


@pytest.mark.behaviour("F9")
def test_late_sound_of_a_completed_response_is_not_the_next_ones() -> None:
    world = World()
    world.ask()
    old = world.c.responses.live
    assert old is not None
    world.answer(("Yes.", 200))
    world.create("Again.")
    world.respond()
    assert world.c.fence.epoch == old.epoch
    told = world.chunk("vocoder", AudioOut(pcm(100), RATE // 10, RATE), epoch=old.epoch, response_id=old.id)
    told += world.chunk("vocoder", last=True, epoch=old.epoch, response_id=old.id)
    assert told == [] and world.c.responses.live is not None


@pytest.mark.behaviour("W25")
def test_a_queued_turn_starts_in_the_next_epoch() -> None:
    world = speaking(World())
    world.c.responses.owed = True
    world.do(commands.ResponseCancel())
    assert world.c.responses.live is not None and world.c.responses.live.epoch == world.c.fence.epoch == 2


def test_output_clear_cancels_the_live_response() -> None:
    world = speaking(World())
    told = world.do(commands.OutputClear())
    assert names(told)[-3:] == ["ResponseDone", "RateLimits", "OutputCleared"]
    assert told[-1].response_id == world.done.id and world.done.reason == "client_cancelled"


def test_output_clear_after_generation_stops_the_playing_and_frees_the_next_response() -> None:
    world = World()
    world.ask()
    world.answer(("One. ", 300), ("Two.", 600))
    world.wait(400)
    assert names(world.do(commands.OutputClear())) == ["OutputCleared"]
    assert world.history()[-1] == "One."
    world.create("Next.")
    assert names(world.respond()) == ["ResponseCreated"]


def test_output_clear_with_nothing_to_hear_is_refused() -> None:
    world = World()
    assert names(world.do(commands.OutputClear(event_id="e"))) == ["Error"]
    assert (world.error.code, world.error.client_event_id) == ("response_cancel_not_active", "e")


def test_cancel_of_a_text_reply_keeps_what_was_written() -> None:
    world = World(TEXT)
    world.ask()
    world.write("Half an answer", last=False)
    world.do(commands.ResponseCancel())
    assert world.of(events.TextDone)[0].text == "Half an answer" and world.history()[-1] == "Half an answer"


def test_cancel_while_the_words_are_awaited() -> None:
    world = World(VAD_OFF)
    world.say(300)
    world.do(commands.InputCommit())
    world.respond()
    world.do(commands.ResponseCancel())
    assert world.done.status == "cancelled"
    world.transcribe("Never mind.")
    assert world.orders(PromptOrder) == [] and world.history() == ["Never mind."]


def test_usage_is_told_on_a_cancelled_response() -> None:
    world = World()
    world.ask()
    world.write("All of it.")
    world.do(commands.ResponseCancel())
    assert world.done.usage is not None and world.done.usage.output_text == 7


def test_dropped_sound_gives_its_credit_back() -> None:
    world = speaking(World())
    live = world.c.responses.live
    assert live is not None
    barge_in(world)
    world.chunk("vocoder", AudioOut(pcm(100), RATE // 10, RATE), epoch=live.epoch, response_id=live.id)
    world.do(commands.ItemRetrieve(item_id=live.item_id))
    made_ms = 100 * (world.positions["vocoder"] - 1)  # one of them was the end
    assert world.c.playback.passed_us == made_ms * 1000
    due_ms = made_ms + world.limits.max_output_lead_ms + world.limits.credit_extra_ms
    assert due_ms - world.limits.credit_extra_ms // 2 < world.voice.granted <= due_ms
