"""A conversation as bytes: small, only what changed, and alive again from any point."""

from __future__ import annotations

import msgspec
import pytest

from gateway.conversation import commands, events
from gateway.conversation.checkpoint import Checkpointer, UnreadableCheckpoint, restore
from gateway.conversation.commands import (
    AudioOut,
    InputAppend,
    ItemTruncate,
    MarkOut,
    SessionUpdate,
    StageAccepted,
    StageChunk,
    StageUpdated,
    Tick,
)
from gateway.conversation.config import SemanticVad, SessionPatch, Tool
from gateway.conversation.effects import Emit, Order, PromptOrder
from gateway.conversation.session import Conversation
from gateway.conversation.state import MAX_OVERTAKERS, SCHEMA

from .support import CONFIG, GRAPH, RATE, SESSION, World, pcm, state_of, user_text


def test_a_restored_conversation_has_the_same_state() -> None:
    world = World()
    world.ask("Tell me.")
    world.answer(("One. ", 800), ("Two.", 900))
    world.wait(300)
    world.update(turn_detection=SemanticVad(), answer=())
    world.create("held")
    twin = world.restored()
    assert state_of(twin) == state_of(world.c)
    assert twin.outbox.unanswered() == world.c.outbox.unanswered()


def test_only_what_changed_is_written() -> None:
    world = World()
    world.ask()
    checkpointer = Checkpointer(world.c)
    checkpointer.take()
    assert checkpointer.take().fields == {}
    world.c.receive(InputAppend(audio=pcm(20)), world.now)
    assert set(checkpointer.take().fields) == {"edges"}
    world.c.receive(commands.ItemCreate(item=user_text("hi", "mine")), world.now)
    assert set(checkpointer.take().fields) == {"item:mine", "history"}
    world.c.receive(commands.ItemDelete(item_id="mine"), world.now)
    fields = checkpointer.take().fields
    assert set(fields) == {"item:mine", "history"} and fields["item:mine"] is None


def test_what_a_response_was_asked_is_not_written_with_every_word() -> None:
    world = World(msgspec.structs.replace(CONFIG, instructions="x" * 5000))
    world.ask()
    checkpointer = Checkpointer(world.c)
    assert len(checkpointer.take().fields["asked"] or b"") > 5000
    world.write("Yes", last=False)
    fields = checkpointer.take().fields
    assert "asked" not in fields and sum(len(data or b"") for data in fields.values()) < 1500
    assert world.restored().responses.live == world.c.responses.live


def test_after_a_commit_that_failed_everything_is_written_again() -> None:
    world = World()
    world.ask()
    whole = dict(world.stored)
    checkpointer = Checkpointer(world.c)
    world.c.history.changed.update(world.c.history.items)
    checkpointer.take()
    checkpointer.forget()
    assert set(checkpointer.take().fields) == set(whole)


@pytest.mark.behaviour("P1")
def test_a_truncate_of_the_live_reply_outlives_a_restore() -> None:
    world = World()
    world.ask()
    world.write("One. ", "Two.")
    world.latents(last=True)
    world.voiced(300, (MarkOut(5, 300, True),))
    live = world.c.responses.live
    assert live is not None
    world.do(ItemTruncate(item_id=live.item_id, content_index=0, audio_end_ms=300))
    twin = world.restored()
    audio = AudioOut(pcm(100), RATE // 10, RATE, (MarkOut(9, 400, True),))
    twin.receive(StageChunk("vocoder", 4, live.epoch, live.id, audio, last=True), world.now)
    assert twin.history.items[live.item_id].text == "One."


def test_held_sound_comes_again_and_leaves_once() -> None:
    world = World()
    world.ask()
    world.write("A story.")
    world.latents(last=True)
    world.voiced(1400)
    twin = world.restored()
    held, before = list(world.c.held._chunks), len(world.of(events.AudioDelta))
    assert len(held) == 4 and twin.state.consumed["vocoder"] == held[0].position - 1
    told: list[object] = []
    for chunk in held:
        told += twin.receive(chunk, world.now)
    for now in range(world.now, world.now + 500, 10):
        told += twin.receive(Tick(), now)
    world.wait(500)
    deltas = [effect.event for effect in told if isinstance(effect, Emit) and isinstance(effect.event, events.AudioDelta)]
    assert deltas == world.of(events.AudioDelta)[before:]


def test_orders_wait_in_the_outbox_until_the_stage_obeyed_them() -> None:
    world = World()
    world.ask()
    world.do(commands.ResponseCancel())
    issued = [effect for effect in world.effects if isinstance(effect, Order)]
    assert sorted(map(str, world.restored().outbox.unanswered())) == sorted(map(str, issued))
    world.do(StageAccepted("llm", {"core": 1}, 1))
    world.do(StageAccepted("asr", {"client": 1, "core": 1}, 1))
    world.do(StageAccepted("llm", {}, 0))
    left = [(order.stage, order.number) for order in world.restored().outbox.unanswered()]
    assert sorted(left) == [("llm", 2), ("talker", 1), ("vocoder", 1)]


def test_commands_that_wait_behind_an_update_are_restored_with_their_items() -> None:
    world = World()
    world.do(SessionUpdate(patch=SessionPatch(turn_detection=SemanticVad())))
    world.respond(input=(user_text("This."),), tools=(Tool("f"),))
    world.append(20)
    twin = world.restored()
    effects = twin.receive(StageUpdated("turn", 2), world.now)
    (prompt,) = [e.body for e in effects if isinstance(e, Order) and isinstance(e.body, PromptOrder)]
    assert [message.content for message in prompt.messages] == ["This."]


def test_another_schema_is_refused() -> None:
    world = World()
    hot = msgspec.msgpack.decode(world.hot)
    hot["state"]["schema"] = SCHEMA + 1
    with pytest.raises(UnreadableCheckpoint):
        restore(SESSION, GRAPH, world.limits, msgspec.msgpack.encode(hot), world.stored)


def test_the_hot_part_does_not_grow_with_what_is_said() -> None:
    world = World(msgspec.structs.replace(CONFIG, instructions="x" * 5000))
    world.say(200)
    world.decide("speech_started", 0)
    for n in range(1, 400):
        world.partial("word " * n)
    world.say(200)
    world.decide("speech_stopped", 300)
    world.transcribe("word " * 400)
    world.write("And so " * 3000, last=False)
    world.update(turn_detection=SemanticVad(), speed=1.1, answer=())
    for _ in range(100):
        world.append(20)
    assert len(world.hot) < 1024


def test_the_hot_part_stays_small_with_the_largest_numbers() -> None:
    c = Conversation(f"sess_{'f' * 32}", CONFIG, GRAPH)
    for stage in (*GRAPH.stages, "aligner", "thinker"):
        c.state.consumed[stage], c.input.generations[stage] = 10**9, 10**5
    c.state.seq = c.state.items = c.state.updates = 10**9
    c.state.client_seq, c.state.overtaken = 10**9, [(10**9 + 2 * n, 1) for n in range(MAX_OVERTAKERS + 1)]
    c.state.lost, c.state.bases = list(GRAPH.stages), dict.fromkeys((*GRAPH.stages, "aligner"), 10**9)
    c.state.misled, c.state.deadlines = list(GRAPH.stages), {"session": 3_600_000, "idle": 3_600_000}
    c.input.open_item, c.input.position, c.input.samples, c.input.pending_bytes = c.new_item_id("u"), 10**9, 10**9, 16 << 20
    c.input.buffer_start_ms = c.input.open_start_ms = c.input.committed_start_ms = c.now = 3_600_000
    c.playback.play_end_us = c.playback.passed_us = 10**13
    c.playback.granted_ms, c.fence.epoch, c.fence.turn = 10**9, 10**6, 10**6
    assert len(Checkpointer(c).take().hot) < 1024
