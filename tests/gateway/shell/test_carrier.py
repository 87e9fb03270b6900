"""Sessions that share a call: each ends alone, none holds up another, and a broken call costs nobody a chunk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from parley_stage.v1 import stage_pb2 as pb

from gateway.carrier import BATCH_BYTES, MESSAGE_BYTES, PARCEL_BYTES
from gateway.conversation import commands as cmd
from gateway.conversation import effects as fx
from gateway.conversation.config import AudioFormat
from gateway.pool import Replica, StagePool
from gateway.stages import StageLink, StageRefused
from tests.gateway.shell.carried import Call, Stage, Stream, replica
from tests.stage_kit.support import Probe, serving
from tests.support.proxy import Proxy

PIECE = bytes(100 * 1024)
OPEN = pb.Open(stage="asr", contract_version=1)


class Session:
    """One session's link, what it put into its mailbox, and the stage's end of it."""

    def __init__(self, name: str, address: Replica, stage: str = "asr") -> None:
        self.link = StageLink(stage, address, pb.Authority(session_id=name, placement=1, attachment=1, holder_id="h"))
        self.mailbox: asyncio.Queue[cmd.Command] = asyncio.Queue()

    def listen(self) -> None:
        self.link.listen(lambda command, at: self.mailbox.put_nowait(command), lambda: None)

    async def open(self, made: Stage) -> Stream:
        opening = asyncio.create_task(self.link.open(OPEN, 5.0))
        stream = await made.stream()
        await stream.next()
        stream.say(opened=pb.Opened())
        await opening
        self.listen()
        return stream

    def hear(self, position: int, data: bytes = b"\0\0") -> None:
        audio = fx.InputAudio(data, len(data) // 2, AudioFormat(), 0)
        self.link.relay(fx.Relay("asr", "client", position, position - 1, "input", 1, 0, "", audio), 0.0)

    def say(self, position: int) -> None:
        text = pb.Payload(text=pb.Text(text=f"word {position}"))
        self.link.relay(fx.Relay("probe", "llm", position, position - 1, "response", 0, 1, "r", text), 0.0)

    async def told(self) -> cmd.Command:
        async with asyncio.timeout(10):
            return await self.mailbox.get()

    async def chunk(self) -> cmd.StageChunk:
        while not isinstance(told := await self.told(), cmd.StageChunk):
            assert isinstance(told, cmd.StageAccepted)
        return told


@pytest.fixture
async def stage() -> AsyncIterator[tuple[Stage, Replica]]:
    async with replica() as (made, address):
        yield made, address


async def two(stage: tuple[Stage, Replica]) -> tuple[Session, Stream, Session, Stream]:
    made, address = stage
    one, other = Session("sess_1", address), Session("sess_2", address)
    return one, await one.open(made), other, await other.open(made)


def parcels(call: Call, number: int) -> list[int]:
    """In which batches the stream had parcels, one entry a parcel."""
    return [index for index, batch in enumerate(call.batches) for parcel in batch.parcels if parcel.stream == number]


async def test_sessions_share_a_call_and_one_that_is_refused_ends_alone(stage: tuple[Stage, Replica]) -> None:
    made, address = stage
    one, stream, other, other_stream = await two(stage)
    refused = asyncio.create_task(Session("sess_3", address).link.open(OPEN, 5.0))
    third = await made.stream()
    third.say(error=pb.StageError(code=pb.StageError.CODE_RESOURCE_EXHAUSTED))
    third.end()
    with pytest.raises(StageRefused):
        await refused
    for session, at in ((one, stream), (other, other_stream)):
        session.hear(1)
        assert (await at.next()).append.position == 1
        at.say(chunk=pb.Chunk(position=1))
        assert (await session.chunk()).position == 1
    assert len(made.calls) == 1 and [each.number for each in (stream, other_stream, third)] == [1, 2, 3]


async def test_what_no_stream_has_is_ignored(stage: tuple[Stage, Replica]) -> None:
    one, stream, other, other_stream = await two(stage)
    await one.link.abandon()
    await stream.left()
    stream.say(chunk=pb.Chunk(position=1))
    Stream(77, stream.call).end()
    other_stream.say(chunk=pb.Chunk(position=1))
    assert (await other.chunk()).position == 1 and one.mailbox.empty()


async def test_the_call_ends_with_its_last_session_and_begins_anew_with_the_next(stage: tuple[Stage, Replica]) -> None:
    made, address = stage
    one, stream, other, _ = await two(stage)
    await one.link.abandon()
    await stream.left()
    assert not stream.call.over.is_set()
    await other.link.abandon()
    async with asyncio.timeout(30):
        await stream.call.over.wait()
    next_stream = await Session("sess_3", address).open(made)
    assert len(made.calls) == 2 and next_stream.number == 1


async def test_an_open_that_nobody_waits_for_any_more_leaves_its_stream(stage: tuple[Stage, Replica]) -> None:
    made, address = stage
    one, stream, *_ = await two(stage)
    opening = asyncio.create_task(Session("sess_3", address).link.open(OPEN, 5.0))
    third = await made.stream()
    opening.cancel()
    await third.left()
    one.hear(1)
    while (await stream.next()).append.position != 1:
        pass


@pytest.mark.behaviour("M5")
async def test_a_session_that_sends_much_takes_turns_with_the_others(stage: tuple[Stage, Replica]) -> None:
    made, _ = stage
    one, stream, other, other_stream = await two(stage)
    made.reads.clear()
    call = stream.call
    for position in range(1, 41):
        one.hear(position, PIECE)
    async with asyncio.timeout(30):
        await stream.read.get()  # the first batch is there, and nothing more is read
    other.hear(1)
    made.reads.set()
    assert (await other_stream.next()).append.position == 1
    async with asyncio.timeout(10):
        while len(parcels(call, stream.number)) < 41:
            await stream.read.get()
    (_, at) = parcels(call, other_stream.number)
    assert at < parcels(call, stream.number)[-1] - 2  # behind those that were on their way, before the rest of the four megabytes
    sizes = [batch.ByteSize() for batch in call.batches]
    assert max(sizes) <= BATCH_BYTES + PARCEL_BYTES and sum(size > BATCH_BYTES - len(PIECE) - PARCEL_BYTES for size in sizes) >= 5


@pytest.mark.parametrize(("excess", "carried"), [(0, True), (1, False)])
async def test_a_message_that_no_call_can_carry_ends_its_own_stream_only(stage: tuple[Stage, Replica], excess: int, carried: bool) -> None:
    made, _ = stage
    one, stream, other, other_stream = await two(stage)
    size = MESSAGE_BYTES - PARCEL_BYTES

    def prompt(length: int) -> fx.PromptOrder:
        return fx.PromptOrder((fx.PromptMessage("user", "x" * length),), 0, (), "", 1, 1, "r")

    one.link.order(fx.Order("asr", 2, 1, 1, prompt(size // 2)), 0.0)
    overhead = (await stream.next()).ByteSize() - size // 2
    one.link.order(fx.Order("asr", 3, 2, 1, prompt(size - overhead + excess)), 0.0)
    if carried:
        assert (await stream.next()).ByteSize() == size
    else:
        await stream.left()
        assert (await (await made.stream()).next()).HasField("attach")
    other.hear(1)
    assert (await other_stream.next()).append.position == 1 and len(made.calls) == 1


async def test_a_session_that_fails_ends_its_own_stream_only(stage: tuple[Stage, Replica]) -> None:
    made, address = stage
    _, stream, other, other_stream = await two(stage)
    third = Session("sess_3", address)

    def fails(command: cmd.Command, at: float) -> None:
        raise RuntimeError

    third_stream = await third.open(made)
    third.link.listen(fails, lambda: None)
    call = stream.call
    call.write.put_nowait(pb.FromStageBatch(parcels=[each.parcel(chunk=pb.Chunk(position=1)) for each in (third_stream, other_stream)]))
    await third_stream.left()
    assert (await other.chunk()).position == 1
    assert (await (await made.stream()).next()).attach.consumed == 1


async def test_acknowledgements_of_all_sessions_travel_together(stage: tuple[Stage, Replica]) -> None:
    one, stream, other, other_stream = await two(stage)
    one.link.ack(3)
    other.link.ack(5)
    assert (await stream.next()).ack.position == 3 and (await other_stream.next()).ack.position == 5
    assert parcels(stream.call, stream.number)[-1] == parcels(stream.call, other_stream.number)[-1]


@pytest.mark.behaviour("X12")
async def test_a_call_that_breaks_in_mid_conversation_loses_and_doubles_nothing() -> None:
    engine = Probe()
    async with serving(engine) as (_, service):
        with Proxy(service.address) as proxy:
            pool = StagePool()
            address = pool.replica(proxy.address)
            sessions = [Session(f"sess_{number}", address, "probe") for number in (1, 2)]
            for session in sessions:
                await session.link.open(pb.Open(stage="probe", contract_version=1), 5.0)
                session.listen()
            sent, heard = 0, [list[tuple[int, object]]() for _ in sessions]
            for cut in (False, True, False, True, True):
                for _ in range(20):
                    sent += 1
                    for session in sessions:
                        session.say(sent)
                if cut:
                    await asyncio.to_thread(proxy.cut)
                for session, chunks in zip(sessions, heard, strict=True):
                    while len(chunks) < sent:
                        chunk = await session.chunk()
                        chunks.append((chunk.position, chunk.output))
            for chunks in heard:
                assert chunks == [(n, cmd.TextOut(f"word {n}")) for n in range(1, sent + 1)]
            assert {len(appends) for appends in engine.heard.values()} == {sent}
            assert await asyncio.gather(*(session.link.close("done", 5.0) for session in sessions)) == [True, True]
            await pool.close()
