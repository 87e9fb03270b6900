"""One session's shell: what it does at once, and what waits for the commit."""

from __future__ import annotations

import asyncio

import pytest

from gateway.actor import Actor, JournalEntry
from gateway.conversation import commands, events
from gateway.conversation import effects as fx
from gateway.conversation.checkpoint import Checkpoint
from gateway.conversation.commands import AudioOut, StageChunk, TextOut
from gateway.conversation.session import Conversation
from gateway.ending import Ending
from gateway.outbound import Outbound
from gateway.tenure import Tenure
from tests.gateway.conversation.support import CONFIG, GRAPH, RATE, user_text

SOUND = AudioOut(bytes(RATE // 10 * 2), RATE // 10, RATE)


class Gate:
    """A commit log that takes its time."""

    overdue = False

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.waiting = asyncio.Event()
        self.commits: list[range] = []
        """Numbers of the events in each."""
        self.journals = 1

    async def commit(self, first_seq: int, entries: list[JournalEntry], checkpoint: Checkpoint, acked_seq: int) -> bool:
        self.waiting.set()
        await self.open.wait()
        self.commits.append(range(first_seq, first_seq + len(entries)))
        return True

    def begin_anew(self) -> None:
        self.journals += 1


class Ours:
    """A client that counts."""

    def skipped(self, seq: int | None) -> str:
        return f"{seq} skipped"

    def durability(self, durable: bool) -> str:
        return ""

    def hears(self, event: events.Event) -> bool:
        return True


class Nowhere:
    """Stages that stay where they are."""

    def replace(self, effect: fx.Replace) -> None:
        raise AssertionError(effect)

    def vacate(self, effect: fx.Vacate) -> None:
        raise AssertionError(effect)


async def confirmed() -> None:
    """Nobody else has the session."""


def frame(event: events.Event, seq: int | None) -> bytes:
    return f"{seq} {type(event).__name__}".encode()


def begun(conversation: Conversation, gate: Gate, outbound: Outbound) -> tuple[Actor, asyncio.Task[Ending]]:
    actor = Actor(conversation, {}, gate, frame, Nowhere(), Tenure(confirmed, 60_000, 1000))
    actor.attach(outbound, Ours())
    return actor, asyncio.create_task(actor.run())


@pytest.mark.behaviour("X15", "R2")
@pytest.mark.parametrize("known", [4, 9])
async def test_a_conversation_that_goes_on_above_what_was_committed_begins_a_new_journal(known: int) -> None:
    gate, outbound, conversation = Gate(), Outbound(1 << 20), Conversation("sess_x", CONFIG, GRAPH)
    conversation.state.seq = 4
    actor, running = begun(conversation, gate, outbound)
    try:
        async with asyncio.timeout(10):
            actor.put(commands.Resume((), known_seq=known))
            actor.put(commands.ItemCreate(item=user_text("hello")))
            while (got := await outbound.get()) is not None and "ItemDone" not in got.text:
                pass
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    numbers = [seq for commit in gate.commits for seq in commit]
    assert numbers == list(range(known + 1, known + 3 + (known > 4))) and gate.journals == 1 + (known > 4)


@pytest.mark.behaviour("F9", "R2", "O4")
async def test_a_muted_sound_is_told_as_skipped_only_when_the_end_of_its_response_is_committed() -> None:
    """Were the gateway killed before, another would replay the sound: the client must not have been told that it comes no more."""
    gate, outbound = Gate(), Outbound(1 << 20)
    actor, running = begun(Conversation("sess_x", CONFIG, GRAPH), gate, outbound)
    told: list[str] = []

    async def until(name: str) -> None:
        while not told or not told[-1].endswith(name):
            got = await outbound.get()
            assert got is not None
            told.append(got.text)

    try:
        async with asyncio.timeout(10):
            actor.put(commands.Start())
            actor.put(commands.ItemCreate(item=user_text("hello")))
            actor.put(commands.ResponseCreate())
            await until("ResponseCreated")
            live = actor.conversation.responses.live
            assert live is not None
            actor.put(StageChunk("llm", 1, live.epoch, live.id, TextOut("Yes. ")))
            await until("TranscriptDelta")
            for position in (1, 2, 3):
                actor.put(StageChunk("vocoder", position, live.epoch, live.id, SOUND))
            await until("AudioDelta")  # the other two wait for the socket
            gate.waiting.clear()
            gate.open.clear()
            actor.put(commands.ResponseCancel())
            await gate.waiting.wait()
            reading = asyncio.create_task(outbound.get())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert len(outbound) == 2 and not reading.done()
            gate.open.set()
            first = await reading
            assert first is not None
            told.append(first.text)
            await until("ResponseDone")
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    names = [text.split()[1] for text in told]
    assert names[names.index("AudioDelta") :][:4] == ["AudioDelta", "skipped", "skipped", "AudioDone"] and names[-1] == "ResponseDone"
    assert [int(text.split()[0]) for text in told] == list(range(1, len(told) + 1)), "every number in its place"
