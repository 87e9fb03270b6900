"""One response: its options, its outputs, its end."""

from __future__ import annotations

import msgspec
import pytest

from gateway.conversation import commands, events
from gateway.conversation.commands import FinishOut, TextOut, ToolOut
from gateway.conversation.config import Tool
from gateway.conversation.effects import PromptMessage, PromptOrder
from gateway.conversation.items import Item
from gateway.conversation.limits import Limits

from .support import CONFIG, TEXT, VAD_OFF, World, names, user_text

WEATHER = Tool("weather", "Says the weather.", {"type": "object"})


def test_a_second_response_while_one_is_live_is_refused() -> None:
    world = World()
    world.ask()
    live = world.c.responses.live
    assert live is not None
    assert names(world.do(commands.ResponseCreate(event_id="e1"))) == ["Error"]
    assert (world.error.code, world.error.client_event_id) == ("response_already_active", "e1") and live.id in world.error.message
    world.answer(("Yes.", 100))
    assert world.done.status == "completed"


def test_a_response_to_nothing_is_refused() -> None:
    world = World()
    assert names(world.respond()) == ["Error"] and world.error.code == "response_create_without_input"
    assert names(world.respond(instructions="Greet the user.")) == ["ResponseCreated"]
    assert world.prompted() == [("system", "Greet the user.")]


@pytest.mark.behaviour("T1")
def test_options_hold_for_one_response() -> None:
    world = World(msgspec.structs.replace(CONFIG, instructions="Session.", max_output_tokens=50, tools=(WEATHER,), tool_choice="auto"))
    world.create("Hi.")
    world.respond(instructions="Once.", output_modalities=("text",), max_output_tokens=5, tools=(), tool_choice="none", metadata={"k": "v"})
    prompt = world.orders(PromptOrder)[-1]
    assert (prompt.messages[0].content, prompt.max_tokens, prompt.tools, prompt.tool_choice) == ("Once.", 5, (), "none")
    assert world.of(events.ResponseCreated)[-1].response.metadata == {"k": "v"}
    world.write("Hello.")
    assert (world.done.modalities, world.done.metadata, world.done.max_output_tokens) == (("text",), {"k": "v"}, 5)

    world.respond()
    prompt = world.orders(PromptOrder)[-1]
    assert (prompt.messages[0].content, prompt.max_tokens, prompt.tools[0].name, prompt.tool_choice) == ("Session.", 50, "weather", "auto")
    world.answer(("Bye.", 100))
    assert (world.done.modalities, world.done.metadata) == (("audio",), None)


def test_the_token_bound_ends_a_response_as_incomplete() -> None:
    world = World()
    world.ask()
    world.write("It was a dark", finish=FinishOut("length", 9, 4))
    world.latents(last=True)
    world.voiced(200, last=True)
    assert (world.done.status, world.done.reason) == ("incomplete", "max_output_tokens")
    assert world.done.output[0].status == "incomplete" and world.history()[-1] == "It was a dark"
    assert world.done.usage is not None and (world.done.usage.input_text, world.done.usage.output_text) == (9, 4)


@pytest.mark.behaviour("O1")
def test_a_function_call_is_told_whole_and_ends_the_response() -> None:
    world = World(VAD_OFF)
    world.create("Weather?")
    world.respond()
    told = names(world.chunk("llm", ToolOut("call_1", "weather", '{"city":"Rome"}')))
    assert told == ["OutputItemAdded", "ItemAdded", "ArgumentsDelta", "ArgumentsDone", "OutputItemDone", "ItemDone"]
    added, done = world.of(events.OutputItemAdded)[0].item, world.of(events.OutputItemDone)[0].item
    assert (added.status, added.arguments, done.status, done.arguments) == ("in_progress", "", "completed", '{"city":"Rome"}')
    world.write()
    world.chunk("talker", last=True)
    world.voiced(0, last=True)
    assert (world.done.status, [item.kind for item in world.done.output]) == ("completed", ["function_call"])

    answer = Item("", "function_call_output", call_id="call_1", output="Sunny.")
    world.do(commands.ItemCreate(item=answer))
    world.respond()
    assert world.orders(PromptOrder)[-1].messages[1:] == (
        PromptMessage("assistant", "", "call_1", "weather", '{"city":"Rome"}'),
        PromptMessage("tool", "Sunny.", "call_1"),
    )


def test_the_end_of_a_reply_reaches_the_talker_when_it_rides_on_a_function_call() -> None:
    world = World(VAD_OFF)
    world.create("Weather?")
    world.respond()
    world.chunk("llm", ToolOut("call_1", "weather", "{}"), last=True, finish=FinishOut())
    (relay,) = world.relays("talker")
    assert relay.last and relay.payload is None


def test_words_and_calls_have_their_own_places_in_the_output() -> None:
    world = World(TEXT)
    world.ask()
    world.write("Let me see. ", last=False)
    world.chunk("llm", ToolOut("c1", "weather", "{}"))
    world.write("One moment.")
    assert [item.kind for item in world.done.output] == ["message", "function_call"]
    assert world.done.output[0].text == "Let me see. One moment."
    assert [event.output_index for event in world.of(events.OutputItemDone)] == [1, 0]


def test_barge_in_during_the_answer_to_a_function_call() -> None:
    world = World()
    world.ask("Weather?")
    world.chunk("llm", ToolOut("c1", "weather", "{}"), last=True, finish=FinishOut())
    world.chunk("talker", last=True)
    world.voiced(0, last=True)
    world.do(commands.ItemCreate(item=Item("", "function_call_output", call_id="c1", output="Sunny.")))
    world.respond()
    world.answer(("It is sunny. ", 600), ("Enjoy.", 1600))
    world.wait(700)
    world.say(100)
    world.decide("speech_started", 900)
    assert world.done.status == "cancelled" and world.history() == ["Weather?", "", "", "It is sunny."]


def test_out_of_band_replies_enter_no_history() -> None:
    world = World()
    world.ask("Hello?")
    world.answer(("Hi.", 100))
    world.wait(1000)
    before = world.history()
    world.respond(out_of_band=True, output_modalities=("text",), input=(user_text("Sort this."),), metadata={"topic": "sort"})
    assert world.prompted() == [("user", "Sort this.")]
    assert "ItemAdded" not in names(world.write("Done.")) and world.history() == before
    assert (world.done.conversation_id, world.done.metadata, world.done.output[0].text) == (None, {"topic": "sort"}, "Done.")


def test_a_user_turn_during_an_out_of_band_reply_is_still_answered() -> None:
    world = World()
    world.utter()
    world.respond(out_of_band=True, output_modalities=("text",), input=(user_text("Sort this."),))
    world.transcribe("Hello?")
    world.write("Sorted.")
    assert len(world.of(events.ResponseCreated)) == 2 and world.prompted() == [("user", "Hello?")]


def test_given_input_replaces_the_conversation_and_needs_no_words_that_are_awaited() -> None:
    world = World(VAD_OFF)
    world.create("Not this.")
    world.say(200)
    world.do(commands.InputCommit())
    world.respond(input=(user_text("This."),))
    assert world.prompted() == [("user", "This.")]


def test_the_newest_messages_that_fit_are_sent_and_the_instructions_always() -> None:
    world = World(msgspec.structs.replace(TEXT, instructions="1234"), Limits(max_prompt_chars=14))
    for text in ("old", "12345", "67890"):
        world.create(text)
    world.respond()
    assert world.prompted() == [("system", "1234"), ("user", "12345"), ("user", "67890")]
    world.write("ok")
    world.create("a message longer than everything")
    world.respond()
    assert world.prompted() == [("system", "1234"), ("user", "a message longer than everything")]


@pytest.mark.behaviour("M1", "F9")
def test_a_chunk_that_comes_twice_is_told_once() -> None:
    world = World(TEXT)
    world.ask()
    world.chunk("llm", TextOut("Once."))
    position = world.positions["llm"]
    world.positions["llm"] -= 1
    assert names(world.chunk("llm", TextOut("Once."))) == [] and world.positions["llm"] == position
    world.write()
    assert world.done.output[0].text == "Once."


@pytest.mark.behaviour("F9")
def test_output_that_names_another_response_is_dropped() -> None:
    world = World(TEXT)
    world.ask()
    assert names(world.chunk("llm", TextOut("Who?"), response_id="resp_other")) == []
    assert world.relays("talker") == []


@pytest.mark.behaviour("R2")
def test_every_event_has_the_next_number() -> None:
    world = World()
    world.ask()
    world.answer(("Yes.", 300))
    world.do(commands.Refused(code="invalid_json", message="no"))
    assert [effect.seq for effect in world.effects if hasattr(effect, "seq")] == list(range(1, world.c.state.seq + 1))


def test_what_the_wire_refused_is_told_in_its_place() -> None:
    world = World()
    (error,) = world.do(commands.Refused(code="missing_field", message="Required.", param="item", event_id="e9"))
    assert error == events.Error("missing_field", "Required.", "item", "e9")
