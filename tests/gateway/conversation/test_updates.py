"""session.update: local or staged, whole or not at all, and what waits behind it."""

from __future__ import annotations

import json

import msgspec
import pytest

from gateway.conversation import commands, events
from gateway.conversation.commands import InputAppend, ItemCreate, SessionUpdate, StageUpdated
from gateway.conversation.config import AudioFormat, SemanticVad, ServerVad, SessionPatch
from gateway.conversation.effects import PromptOrder, UpdateOrder
from gateway.conversation.limits import Limits

from .support import CONFIG, VAD_OFF, World, names, pcm, state_of, user_text


@pytest.mark.behaviour("C1")
def test_what_concerns_no_stage_takes_effect_at_once() -> None:
    world = World()
    told = world.update(instructions="Be kind.", extras={"tracing": "auto"}, max_output_tokens=9)
    assert names(told) == ["SessionUpdated"] and told[0].config == world.c.config
    assert (world.c.config.instructions, world.c.config.extras, world.c.config.max_output_tokens) == ("Be kind.", {"tracing": "auto"}, 9)
    assert world.orders(UpdateOrder) == [] and world.c.fence.config_generation == 1
    world.update(extras={"tracing": None}, max_output_tokens=None, instructions="")
    assert (world.c.config.instructions, world.c.config.extras, world.c.config.max_output_tokens) == ("", {}, None)


@pytest.mark.behaviour("C1", "W21")
def test_an_update_is_staged_by_whom_it_concerns_and_told_when_all_have_it() -> None:
    world = World()
    told = world.update(turn_detection=SemanticVad(eagerness="high"), speed=1.5, answer=("turn",))
    assert names(told) == [] and world.c.config == CONFIG
    assert [(stage, json.loads(order.config_json)) for stage, order in world.told_stages()] == [
        ("turn", {"mode": "semantic_vad", "eagerness": "high"}),
        ("talker", {"voice": "default", "speed": 1.5}),
    ]
    told = world.do(StageUpdated("talker", 2))
    assert names(told) == ["SessionUpdated"] and world.c.config.speed == 1.5 and world.c.fence.config_generation == 2


@pytest.mark.behaviour("M3")
def test_what_is_appended_is_stamped_with_the_configuration_that_held() -> None:
    world = World()
    world.append(20)
    world.update(turn_detection=SemanticVad(), answer=())
    world.append(20)
    assert [relay.config_generation for relay in world.relays("turn")] == [1]
    world.do(StageUpdated("turn", 2))
    world.append(20)
    assert [relay.config_generation for relay in world.relays("turn")] == [1, 2, 2]


@pytest.mark.behaviour("C1")
def test_a_refused_update_leaves_everything_as_it_was() -> None:
    world = World()
    world.do(SessionUpdate(patch=SessionPatch(turn_detection=SemanticVad(), speed=1.5, instructions="New."), event_id="u1"))
    world.do(StageUpdated("talker", 2))
    told = world.do(StageUpdated("turn", 2, "no such model", "audio.input.turn_detection"))
    assert names(told) == ["Error"] and world.c.config == CONFIG and world.c.fence.config_generation == 1
    assert (world.error.code, world.error.param) == ("update_refused", "session.audio.input.turn_detection")
    assert world.error.client_event_id == "u1" and "no such model" in world.error.message


@pytest.mark.behaviour("C1")
def test_a_stage_that_staged_a_refused_configuration_is_told_better_before_it_could_hold() -> None:
    world = World()
    world.do(SessionUpdate(patch=SessionPatch(turn_detection=SemanticVad(), speed=1.5)))
    world.do(StageUpdated("talker", 2))
    world.do(StageUpdated("turn", 2, "no"))
    world.update(turn_detection=ServerVad(threshold=0.7))
    orders = [(stage, order.config_generation) for stage, order in world.told_stages()]
    assert orders == [("turn", 2), ("talker", 2), ("turn", 3), ("talker", 3)]
    assert json.loads(world.orders(UpdateOrder, "talker")[-1].config_json)["speed"] == 1.0
    assert world.c.fence.config_generation == 3
    world.update(turn_detection=ServerVad(threshold=0.8))
    assert len(world.orders(UpdateOrder, "talker")) == 2, "once is enough"


def test_a_late_stage_refuses_the_update() -> None:
    world = World()
    world.update(turn_detection=SemanticVad(), answer=())
    world.wait(world.limits.update_timeout_ms)
    assert world.error.code == "update_refused" and "turn" in world.error.message and world.c.config == CONFIG
    assert names(world.do(StageUpdated("turn", 2))) == [], "too late"


@pytest.mark.behaviour("M1", "M3")
def test_commands_behind_an_update_wait_and_keep_their_order() -> None:
    world = World()
    world.update(turn_detection=SemanticVad(), answer=())
    for text in ("a", "b"):
        assert names(world.do(ItemCreate(item=user_text(text)))) == []
    world.respond()
    assert names(world.do(StageUpdated("turn", 2))) == [
        "SessionUpdated",
        "ItemAdded",
        "ItemDone",
        "ItemAdded",
        "ItemDone",
        "ResponseCreated",
    ]
    assert world.prompted() == [("user", "a"), ("user", "b")]


def test_an_update_behind_an_update_makes_the_rest_wait_again() -> None:
    world = World()
    world.update(turn_detection=SemanticVad(), answer=())
    world.do(SessionUpdate(patch=SessionPatch(speed=1.2)))
    world.do(ItemCreate(item=user_text("a")))
    assert names(world.do(StageUpdated("turn", 2))) == ["SessionUpdated"]
    assert names(world.do(StageUpdated("talker", 3))) == ["SessionUpdated", "ItemAdded", "ItemDone"]


@pytest.mark.behaviour("M5")
def test_a_cancel_overtakes_what_waits_behind_an_update() -> None:
    world = World()
    world.ask()
    world.write("Well", last=False)
    world.update(turn_detection=SemanticVad(), answer=())
    world.do(ItemCreate(item=user_text("a")))
    assert "ResponseDone" in names(world.do(commands.ResponseCancel()))
    assert world.done.status == "cancelled" and "a" not in world.history()


@pytest.mark.behaviour("M1")
def test_a_cancel_with_nothing_to_cancel_keeps_its_place() -> None:
    world = World()
    world.create("a")
    world.update(turn_detection=SemanticVad(), answer=())
    world.respond()
    assert names(world.do(commands.ResponseCancel())) == []
    world.do(StageUpdated("turn", 2))
    assert world.done.status == "cancelled"


@pytest.mark.behaviour("B1")
def test_what_waits_behind_an_update_is_bounded() -> None:
    world = World(VAD_OFF, Limits(max_held_commands=3, max_pending_input_bytes=len(pcm(40))))
    world.update(turn_detection=ServerVad(), answer=())
    world.append(40)
    assert names(world.do(InputAppend(audio=pcm(20), event_id="big"))) == ["Error"] and world.error.client_event_id == "big"
    for text in "ab":
        assert names(world.do(ItemCreate(item=user_text(text)))) == []
    assert names(world.do(ItemCreate(item=user_text("c"), event_id="many"))) == ["Error"] and world.error.client_event_id == "many"
    world.do(StageUpdated("turn", 2))
    assert world.history() == ["a", "b"]


def test_stage_outputs_do_not_wait_for_an_update() -> None:
    world = World()
    world.ask()
    world.update(turn_detection=SemanticVad(), answer=())
    world.answer(("Yes.", 200))
    assert world.done.status == "completed"


def test_the_model_never_changes() -> None:
    world = World()
    before = state_of(world.c)
    assert names(world.update(model="other")) == ["Error"]
    assert (world.error.code, world.error.param) == ("model_update_unsupported", "session.model") and state_of(world.c) == before
    assert names(world.update(model=CONFIG.model)) == ["SessionUpdated"]


def test_the_voice_never_changes_after_sound() -> None:
    world = World()
    assert names(world.update(voice="amy")) == ["SessionUpdated"]
    world.ask()
    world.answer(("Yes.", 200))
    assert names(world.update(voice="joe", instructions="New.")) == ["Error"]
    assert (world.error.code, world.error.param) == ("voice_update_after_audio", "session.audio.output.voice")
    assert world.c.config.instructions == "" and names(world.update(voice="amy")) == ["SessionUpdated"]


def test_formats_change_between_utterances_only() -> None:
    world = World()
    world.ask()
    assert names(world.update(output_format=AudioFormat("pcmu", 8000))) == ["Error"]
    assert (world.error.code, world.error.param) == ("format_update_during_speech", "session.audio.output.format")
    world.answer(("Yes.", 200))
    world.update(output_format=AudioFormat("pcmu", 8000), input_format=AudioFormat("pcma", 8000))
    orders = dict(world.told_stages())
    assert set(orders) == {"turn", "asr", "vocoder"}
    assert orders["turn"].input_format == orders["asr"].input_format == AudioFormat("pcma", 8000)
    assert orders["vocoder"].output_format == AudioFormat("pcmu", 8000) and orders["vocoder"].input_format is None


def test_an_update_names_only_the_formats_that_change() -> None:
    world = World()
    world.update(turn_detection=ServerVad(threshold=0.9))
    assert [(order.input_format, order.output_format) for order in world.orders(UpdateOrder)] == [(None, None)]


def test_the_timeline_goes_on_when_the_format_changes() -> None:
    world = World(VAD_OFF)
    world.append(1000)
    world.update(input_format=AudioFormat("pcmu", 8000))
    world.do(InputAppend(audio=bytes(8000)))
    assert world.c.input.end_ms(world.c.config.input_format) == 2000
    last = world.relays("asr")[-1].payload
    assert (last.start_sample, last.samples, last.format.rate) == (8000, 8000, 8000)
    world.do(commands.InputCommit())
    assert world.c.history.items[world.c.history.order[-1]].content[0].audio_ms == 2000


def test_detection_switched_off_leaves_the_silence_before_it_out() -> None:
    world = World()
    world.say(2000)
    world.update(turn_detection=None)
    world.append(300)
    world.do(commands.InputCommit())
    assert world.c.history.items[world.c.history.order[-1]].content[0].audio_ms == 300


def test_detection_switched_off_while_the_user_speaks_keeps_the_utterance_and_frees_the_reply() -> None:
    world = World()
    world.utter()
    world.say(200)
    world.decide("speech_started", 800)
    world.transcribe("First.")
    world.update(turn_detection=None)
    assert world.c.responses.live is not None and world.c.input.open_item is not None
    told = world.do(commands.InputCommit())
    assert told[0].item_id == world.of(events.SpeechStarted)[-1].item_id


def test_instructions_of_an_update_hold_for_the_next_response() -> None:
    world = World(msgspec.structs.replace(VAD_OFF, instructions="Old."))
    world.create("Hi.")
    world.respond()
    world.update(instructions="New.")
    world.answer(("Yes.", 100))
    world.respond()
    assert [order.messages[0].content for order in world.orders(PromptOrder)] == ["Old.", "New."]
