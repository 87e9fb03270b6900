"""The conversation's items: made, placed, found, deleted, truncated."""

from __future__ import annotations

import msgspec
import pytest

from gateway.conversation import commands, events
from gateway.conversation.commands import ItemCreate, ItemDelete, ItemRetrieve, ItemTruncate, MarkOut, Tick
from gateway.conversation.effects import PromptOrder
from gateway.conversation.items import Item, Part
from gateway.conversation.limits import Limits

from .support import TEXT, VAD_OFF, World, names, state_of, user_text


def refused(world: World, command: commands.ClientCommand, code: str, param: str | None) -> None:
    """One error that names the client's event, and nothing else has happened."""
    world.do(Tick())
    before = state_of(world.c)
    told = world.do(msgspec.structs.replace(command, event_id="evt"))
    assert names(told) == ["Error"], told
    assert (world.error.code, world.error.param, world.error.client_event_id) == (code, param, "evt")
    assert state_of(world.c) == before


def replied(text: tuple[tuple[str, int], ...] = (("One. ", 1000), ("Two. ", 1000), ("Three.", 1000))) -> tuple[World, str]:
    """A reply that was made and heard to its end."""
    world = World()
    world.ask("Count.")
    world.answer(*text)
    world.wait(10_000)
    return world, world.done.output[0].id


def test_an_item_is_added_then_done_and_gets_an_id() -> None:
    world = World()
    told = world.do(ItemCreate(item=user_text("Hello.")))
    assert names(told) == ["ItemAdded", "ItemDone"]
    assert told[0].item.id and told[0].item == told[1].item and told[0].previous_item_id is None


def test_items_go_after_the_one_that_is_named_or_to_the_head() -> None:
    world = World()
    a = world.create("a").id
    c = world.create("c").id
    b = world.create("b", previous_item_id=a).id
    head = world.create("head", previous_item_id="root").id
    assert world.c.history.order == [head, a, b, c]
    assert [event.previous_item_id for event in world.of(events.ItemAdded)] == [None, a, a, None]


def test_a_clients_own_id_is_kept_and_never_taken_twice() -> None:
    world = World()
    assert world.create("a", "mine").id == "mine"
    refused(world, ItemCreate(item=user_text("b", "mine")), "item_already_exists", "item.id")


def test_an_id_that_is_in_use_but_not_yet_in_the_history_is_refused() -> None:
    world = World()
    world.ask()
    live = world.c.responses.live
    assert live is not None
    refused(world, ItemCreate(item=user_text("x", live.item_id)), "item_already_exists", "item.id")
    world.say(100)
    world.decide("speech_started", 900)
    assert world.c.input.open_item is not None
    refused(world, ItemCreate(item=user_text("x", world.c.input.open_item)), "item_already_exists", "item.id")


def test_made_ids_step_around_those_of_the_client() -> None:
    world = World()
    taken = world.c.make_id("item_u", world.c.state.items + 1)
    world.create("mine", taken)
    assert world.utter() != taken


def test_an_id_may_come_again_after_its_item_was_deleted() -> None:
    world = World()
    item_id = world.create("a").id
    world.do(ItemDelete(item_id=item_id))
    assert names(world.do(ItemCreate(item=user_text("b", item_id)))) == ["ItemAdded", "ItemDone"]


def test_an_unknown_place_is_refused() -> None:
    refused(World(), ItemCreate(item=user_text("a"), previous_item_id="gone"), "item_not_found", "previous_item_id")


def test_an_item_has_at_most_so_many_characters() -> None:
    world = World(limits=Limits(max_item_chars=5))
    world.create("12345")
    refused(world, ItemCreate(item=user_text("123456")), "invalid_item", "item")
    call = Item("", "function_call", call_id="c", name="f", arguments="123456")
    refused(world, ItemCreate(item=call), "invalid_item", "item")


@pytest.mark.behaviour("U43")
def test_a_typed_item_beyond_the_most_is_refused() -> None:
    world = World(limits=Limits(max_items=2))
    world.create("a")
    world.create("b")
    refused(world, ItemCreate(item=user_text("c")), "conversation_full", None)


@pytest.mark.behaviour("U43")
def test_spoken_turns_and_replies_make_the_oldest_items_leave_and_say_so() -> None:
    world = World(limits=Limits(max_items=3))
    system = Item("sys", role="system", content=(Part("input_text", text="Rules."),))
    world.do(ItemCreate(item=system))
    first = world.ask("First?")
    world.answer(("One.", 200))
    world.wait(1000)
    second = world.ask("Second?")
    world.answer(("Two.", 200))
    assert world.history() == ["Rules.", "Second?", "Two."]
    assert [event.item_id for event in world.of(events.ItemDeleted)] == [first, world.of(events.ResponseDone)[0].response.output[0].id]
    assert second in world.c.history.items


def test_a_reply_is_not_shed_while_it_is_made() -> None:
    world = World(limits=Limits(max_items=1))
    world.ask("One?")
    world.write("Yes", last=False)
    world.do(commands.InputCommit())
    assert world.c.responses.live is not None and world.c.responses.live.item_id in world.c.history.items
    world.write(".")
    world.latents(last=True)
    world.voiced(100, last=True)
    assert world.done.status == "completed"


def test_retrieve_tells_the_item_as_it_is_kept() -> None:
    world = World()
    item_id = world.ask("What?")
    (told,) = world.do(ItemRetrieve(item_id=item_id))
    assert told.item.content[0].transcript == "What?"
    refused(world, ItemRetrieve(item_id="gone"), "item_not_found", "item_id")


def test_delete_takes_an_item_out_of_the_next_prompt() -> None:
    world = World()
    gone = world.create("secret").id
    world.create("open")
    assert names(world.do(ItemDelete(item_id=gone))) == ["ItemDeleted"]
    world.respond()
    assert world.prompted() == [("user", "open")]
    refused(world, ItemDelete(item_id=gone), "item_not_found", "item_id")


def test_an_item_that_is_being_made_cannot_be_deleted() -> None:
    world = World()
    world.ask()
    world.write("Yes", last=False)
    live = world.c.responses.live
    assert live is not None
    refused(world, ItemDelete(item_id=live.item_id), "item_in_progress", "item_id")


def test_delete_of_an_item_whose_words_are_awaited_frees_who_waits() -> None:
    world = World(VAD_OFF)
    world.create("typed")
    world.say(300)
    item_id = world.do(commands.InputCommit())[0].item_id
    world.respond()
    assert world.orders(PromptOrder) == []
    world.do(ItemDelete(item_id=item_id))
    assert world.prompted() == [("user", "typed")]
    assert names(world.transcribe("too late", item_id)) == []


def test_a_reply_that_is_owed_to_a_deleted_turn_is_not_made() -> None:
    world = World()
    world.utter()
    world.say(100)
    world.decide("speech_started", 800)
    item_id = next(iter(world.c.dialog.hearing))
    world.transcribe("Hello.", item_id)
    world.do(ItemDelete(item_id=item_id))
    world.do(commands.InputClear())
    assert world.c.responses.live is None and world.of(events.Error) == []


@pytest.mark.behaviour("U40", "P1")
@pytest.mark.parametrize(
    ("at", "kept"), [(0, ""), (999, ""), (1000, "One."), (2500, "One. Two."), (2999, "One. Two."), (3000, "One. Two. Three.")]
)
def test_truncate_keeps_the_sentences_that_ended_by_then(at: int, kept: str) -> None:
    world, item_id = replied()
    (told,) = world.do(ItemTruncate(item_id=item_id, content_index=0, audio_end_ms=at))
    assert told == events.ItemTruncated(item_id, 0, at)
    assert world.history()[-1] == kept
    world.create("Go on.")
    world.respond()
    assert world.prompted() == [("user", "Count."), *([("assistant", kept)] if kept else []), ("user", "Go on.")]


@pytest.mark.behaviour("P1", "U40")
def test_a_second_truncate_only_cuts_further() -> None:
    world, item_id = replied()
    for at, kept in ((2000, "One. Two."), (2900, "One. Two."), (1000, "One."), (1999, "One.")):
        assert names(world.do(ItemTruncate(item_id=item_id, content_index=0, audio_end_ms=at))) == ["ItemTruncated"]
        assert world.history()[-1] == kept


@pytest.mark.behaviour("P1")
def test_truncate_beyond_the_sound_is_refused_and_the_next_turn_works() -> None:
    world, item_id = replied()
    refused(world, ItemTruncate(item_id=item_id, content_index=0, audio_end_ms=3001), "invalid_truncate", "audio_end_ms")
    world.ask("Next?")
    world.answer(("Yes.", 100))
    assert world.done.status == "completed"


@pytest.mark.behaviour("U40", "P1")
def test_truncate_of_what_has_no_sound_is_refused() -> None:
    world, item_id = replied()
    user = world.c.history.order[0]
    refused(world, ItemTruncate(item_id="gone", content_index=0, audio_end_ms=0), "item_not_found", "item_id")
    refused(world, ItemTruncate(item_id=item_id, content_index=1, audio_end_ms=0), "invalid_content_index", "content_index")
    refused(world, ItemTruncate(item_id=user, content_index=0, audio_end_ms=0), "invalid_truncate", "item_id")
    world.do(ItemCreate(item=Item("typed", role="assistant", content=(Part("output_text", text="Hi."),))))
    refused(world, ItemTruncate(item_id="typed", content_index=0, audio_end_ms=0), "invalid_truncate", "item_id")


def test_truncate_of_a_text_reply_is_refused_while_it_is_made_and_after() -> None:
    world = World(TEXT)
    world.ask()
    world.write("Hi", last=False)
    live = world.c.responses.live
    assert live is not None
    refused(world, ItemTruncate(item_id=live.item_id, content_index=0, audio_end_ms=0), "invalid_content_index", "content_index")
    world.write(".")
    refused(world, ItemTruncate(item_id=live.item_id, content_index=0, audio_end_ms=0), "invalid_truncate", "item_id")


@pytest.mark.behaviour("P1")
def test_truncate_of_the_live_reply_holds_when_it_ends() -> None:
    world = World()
    world.ask("Count.")
    world.write("One. ", "Two.")
    world.latents(last=True)
    world.voiced(300, (MarkOut(5, 300, True),))
    world.wait(300)
    live = world.c.responses.live
    assert live is not None
    refused(world, ItemTruncate(item_id=live.item_id, content_index=0, audio_end_ms=301), "invalid_truncate", "audio_end_ms")
    world.do(ItemTruncate(item_id=live.item_id, content_index=0, audio_end_ms=300))
    world.do(ItemTruncate(item_id=live.item_id, content_index=0, audio_end_ms=301 - 1))
    world.voiced(300, (MarkOut(9, 600, True),), last=True)
    assert world.done.output[0].text == "One. Two." and world.history()[-1] == "One."
    world.do(ItemTruncate(item_id=live.item_id, content_index=0, audio_end_ms=600))
    assert world.history()[-1] == "One."


@pytest.mark.behaviour("U40", "U37")
def test_truncate_after_a_barge_in_never_brings_words_back() -> None:
    world = World()
    world.ask("Count.")
    world.answer(("One. ", 1000), ("Two. ", 1000), ("Three.", 1000))
    world.wait(1300)
    world.do(commands.ResponseCancel())
    item_id = world.done.output[0].id
    assert world.history()[-1] == "One."
    world.do(ItemTruncate(item_id=item_id, content_index=0, audio_end_ms=2000))
    assert world.history()[-1] == "One."
    world.do(ItemTruncate(item_id=item_id, content_index=0, audio_end_ms=0))
    assert world.history()[-1] == ""


@pytest.mark.behaviour("U40")
def test_sound_is_remembered_for_the_newest_replies_only() -> None:
    world = World(VAD_OFF)
    world.create("Go.")
    for _ in range(65):
        world.respond()
        world.answer(("Yes.", 100))
        world.wait(200)
    oldest, second = (event.response.output[0].id for event in world.of(events.ResponseDone)[:2])
    refused(world, ItemTruncate(item_id=oldest, content_index=0, audio_end_ms=0), "invalid_truncate", "item_id")
    assert names(world.do(ItemTruncate(item_id=second, content_index=0, audio_end_ms=0))) == ["ItemTruncated"]
    assert len(world.c.history.sounds) == len(world.c.history.full_text) == 64
