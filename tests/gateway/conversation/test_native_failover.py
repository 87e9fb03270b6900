"""Gateways that die and stages that are lost while a model listens or speaks."""

from __future__ import annotations

import msgspec
import pytest

from gateway.conversation import commands, events
from gateway.conversation.checkpoint import Checkpointer, restore
from gateway.conversation.commands import StageAccepted, StageDraining, StagePlaced, TextOut
from gateway.conversation.effects import CancelOrder, Relay, Replace
from gateway.conversation.policy import stage_config

from .duplex import DUPLEX, Duplex, DuplexTale
from .support import GRAPH, SESSION, World, state_of


def in_mid_turn(tale: Duplex) -> None:
    """Two units of a turn are made, one is being heard."""
    tale.say(1040)
    tale.speaks("Hello ", begins=True)
    tale.sings()
    tale.sounds(1000)
    tale.say(1000)
    tale.speaks("there, ")
    tale.sings()
    tale.sounds(1000)


def finish(tale: Duplex) -> None:
    tale.speaks("friend.", ends=True)
    tale.sings(last=True)
    tale.sounds(500, last=True)
    tale.wait(4000)


@pytest.mark.behaviour("X1", "E1")
def test_a_takeover_in_mid_turn_loses_nothing_and_doubles_nothing() -> None:
    tale, whole = DuplexTale(), DuplexTale()
    for each in (tale, whole):
        in_mid_turn(each)
    tale.arrive()
    tale.die()
    for each in (tale, whole):
        finish(each)
    assert tale.done.status == "completed" and tale.history() == whole.history() == ["Hello there, friend."]
    assert tale.decisions == whole.decisions and tale.sent_ms == whole.sent_ms == 2500
    assert [event.delta for event in tale.of(events.TranscriptDelta)] == ["Hello ", "there, ", "friend."]


@pytest.mark.behaviour("X1")
def test_what_was_decided_and_not_committed_is_decided_again() -> None:
    tale = DuplexTale()
    tale.say(1040)
    tale.late = True
    tale.speaks("Hello ", begins=True)
    assert not tale.of(events.ResponseCreated), "nothing of it was told"
    tale.die()
    tale.late = False
    tale.commit_now()
    assert [event.response.id for event in tale.of(events.ResponseCreated)] == ["resp_abc_1"]
    assert tale.c.responses.live is not None and tale.c.responses.live.text == "Hello "
    assert [r.response_id for r in tale.relays("singer")] == ["t1", "t1"], "sent again; the reader drops what it has"
    finish(tale)
    assert tale.history() == ["Hello friend."]


def test_a_restored_conversation_is_the_same() -> None:
    world = Duplex()
    in_mid_turn(world)
    world.speaks("", ends=True)
    world.say(900)
    world.begins()
    world.thinks(TextOut("Next"))
    assert world.c.responses.coming
    world.commit()
    assert state_of(world.restored()) == state_of(world.c)


@pytest.mark.behaviour("X3")
def test_a_lost_model_begins_anew_with_a_recap_and_the_latest_sound() -> None:
    tale = DuplexTale()
    in_mid_turn(tale)
    finish(tale)
    tale.speak(40_000)
    tale.arrive()
    tale.lose("seer")
    assert tale.c.fence.epoch == 2, "its turns are counted from 1 again: not in an epoch that has some"
    replace = next(effect for effect in tale.effects if isinstance(effect, Replace))
    end = tale.c.input.position
    assert replace.resume_after["client"] == end - 30_000 * 24
    recap = tale.c.memory.recap
    assert recap is not None and recap.text == "Hello there, friend." and recap.heard_until_ms == tale.heard_ms
    config = stage_config(DUPLEX, "seer", tale.c.config, recap)
    assert (config["before"], config["known_ms"]) == ("Hello there, friend.", tale.heard_ms)
    tale.speak(200)
    tale.place("seer")
    tale.arrive()
    again = tale.stages["seer"]
    assert [order.body for order in again.orders] == [CancelOrder(1, 2, "placed")], "it learns the epoch"
    assert len(again.audio) // 2 == again.marks["client"] - again.heard_from == end + 200 * 24 - again.heard_from
    tale.units, counted = 0, tale.c.native.units
    for end_ms in (1000, tale.heard_ms - 5000):
        assert not tale.listens(end_ms), "what it only hears again was decided before"
    assert tale.c.native.units == counted
    tale.model_turn = 0
    tale.speak(1000)
    tale.speaks("As I said.", begins=True, ends=True)
    tale.sings(last=True)
    tale.sounds(300, last=True)
    tale.wait(1000)
    assert tale.done.status == "completed" and tale.history()[-1] == "As I said."
    tale.check()


@pytest.mark.behaviour("X3")
def test_an_update_of_a_model_that_was_placed_anew_keeps_its_recap() -> None:
    tale = DuplexTale()
    in_mid_turn(tale)
    finish(tale)
    tale.lose("seer")
    tale.place("seer")
    tale.update(model_options={"top_k": 4})
    assert '"before":"Hello there, friend."' in tale.told_stages()[-1][1].config_json
    tale.commit()
    assert tale.restored().memory == tale.c.memory


@pytest.mark.behaviour("X3")
@pytest.mark.parametrize("stage", ["seer", "singer", "sounder"])
def test_a_turn_whose_stage_is_lost_ends_as_failed_and_the_next_works(stage: str) -> None:
    tale = DuplexTale()
    in_mid_turn(tale)
    tale.arrive()
    tale.lose(stage)
    assert tale.done.status == "failed" and tale.done.error_code == "stage_lost" and tale.c.native.turn == 0
    if stage != "seer":
        assert any(isinstance(order.body, CancelOrder) for order in tale.stages["seer"].coming), "the model is to stop"
    tale.place(stage)
    tale.arrive()
    if stage == "seer":
        tale.model_turn = 0
    tale.speak(1000)
    tale.listens()
    tale.speak(1000)
    tale.speaks("Again.", begins=True, ends=True)
    tale.sings(last=True)
    tale.sounds(300, last=True)
    tale.wait(1000)
    assert tale.done.status == "completed"
    tale.check()


def test_a_turn_that_begins_while_nobody_can_voice_it_is_stopped() -> None:
    tale = DuplexTale()
    tale.say(1040)
    tale.lose("singer")
    before = tale.c.fence.epoch
    assert tale.begins() == [] and tale.c.fence.epoch == before + 1
    assert tale.c.responses.live is None and not tale.of(events.ResponseCreated)
    tale.place("singer")
    tale.listens()
    tale.speaks("Now.", begins=True)
    assert tale.c.responses.live is not None


def test_a_lost_model_that_never_spoke_is_replaced_without_a_word() -> None:
    tale = DuplexTale()
    tale.speak(3000)
    tale.listens()
    tale.arrive()
    tale.lose("seer")
    tale.place("seer")
    tale.arrive()
    assert tale.c.fence.epoch == 1 and not tale.of(events.Error) and not tale.of(events.ResponseDone)
    assert tale.stages["seer"].heard_from == 0, "all of it fits"
    tale.check()


@pytest.mark.behaviour("R8")
def test_a_store_that_forgot_a_turn_ends_it_in_an_epoch_that_is_new_to_all() -> None:
    world = Duplex()
    world.say(1040)
    forgotten = world.restored()
    in_mid_turn(world)
    marks = {"client": forgotten.input.position}
    ahead = tuple(commands.StageAttached(stage, 1, marks, 1, first_kept=1) for stage in DUPLEX.stages)
    effects = forgotten.receive(commands.Resume(ahead, known_seq=world.c.state.seq), world.now)
    cancels = [effect for effect in effects if getattr(effect, "body", None) == CancelOrder(1, 2, "recovered")]
    assert [order.stage for order in cancels] == ["seer", "singer", "sounder"]
    assert forgotten.responses.live is None and forgotten.native.turn == 0
    late = commands.StageChunk("seer", 2, 1, "t1", TextOut("lost"), turn=1)
    assert not [effect for effect in forgotten.receive(late, world.now) if isinstance(effect, Relay)]


@pytest.mark.behaviour("X16")
def test_a_model_moves_when_it_listens_and_not_in_mid_turn() -> None:
    tale = DuplexTale()
    in_mid_turn(tale)
    tale.arrive()
    tale.do(commands.StageDraining("seer"))
    assert "seer" not in tale.wanted
    finish(tale)
    tale.arrive()
    tale.do(commands.Tick())
    moved = next(effect for effect in tale.effects if isinstance(effect, Replace))
    assert moved.leaves and moved.stage == "seer" and tale.c.memory.recap is not None
    tale.place("seer")
    tale.arrive()
    assert not [event for event in tale.of(events.ResponseDone) if event.response.status != "completed"]
    tale.check()


@pytest.mark.parametrize("late", [False, True])
def test_the_end_of_a_turn_that_died_with_its_gateway_is_told_once(late: bool) -> None:
    tale = DuplexTale()
    in_mid_turn(tale)
    tale.late = late
    tale.speaks("friend.", ends=True)
    tale.sings(last=True)
    tale.sounds(500, last=True)
    tale.arrive()
    tale.die()
    tale.late = False
    tale.commit_now()
    tale.wait(4000)
    assert [event.response.status for event in tale.of(events.ResponseDone)] == ["completed"]
    assert tale.decisions[-1] == (2, "turn_end") and len([d for _, d in tale.decisions if d == "turn_end"]) == 1


def test_old_checkpoints_of_a_dialog_have_nothing_of_it() -> None:
    world = World()
    parts = Checkpointer(world.c).take()
    assert "memory" not in parts.fields and b"native\xc0" in parts.hot
    hot = msgspec.msgpack.decode(parts.hot)
    del hot["native"]
    fields = {name: data for name, data in parts.fields.items() if data is not None}
    assert restore(SESSION, GRAPH, world.limits, msgspec.msgpack.encode(hot), fields).native == world.c.native


@pytest.mark.behaviour("X5")
def test_a_model_that_could_not_leave_goes_on_with_its_own_numbers_and_memory() -> None:
    """Its receipts count from where it was opened, and no unit of its is one that it only hears again."""
    world = Duplex()
    for _ in range(3):
        world.say(1000)
        world.listens()
    lines = world.c.edges.state.lines
    marks = {source: readers["seer"].sent for source, readers in lines.items() if "seer" in readers}
    world.do(StageAccepted("seer", marks, world.c.outbox.issued("seer")))
    before = msgspec.structs.replace(world.c.memory)
    world.do(StageDraining("seer"))
    assert world.performed(Replace) and world.c.native.base == 3
    world.commit()
    assert world.restored().memory == world.c.memory
    world.do(StagePlaced("seer", back=True))
    assert (world.c.native.base, world.c.memory) == (0, before)
    world.say(1000)
    world.listens()
    assert world.decisions[-1] == (3, "listen") and world.c.native.units == 4
