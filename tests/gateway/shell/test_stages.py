"""The stage client against a real gRPC server that answers as a test tells it to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from parley_stage.v1 import stage_pb2 as pb

from gateway.conversation import commands as cmd
from gateway.conversation import effects as fx
from gateway.conversation.config import AudioFormat
from gateway.stages import COMMIT_LAG_BYTES, StageLink, StageRefused
from tests.gateway.shell.carried import Stage, Stream, replica

AUTHORITY = pb.Authority(session_id="sess_1", placement=1, attachment=1, holder_id="h")
PIECE = bytes(200 * 1024)


class Opened:
    """A link that has opened, what it put into the mailbox, and the stage's end of it."""

    def __init__(self, link: StageLink, stage: Stage, stream: Stream) -> None:
        self.link, self.stage, self.stream = link, stage, stream
        self.mailbox: asyncio.Queue[cmd.Command] = asyncio.Queue()
        self.overtaken = asyncio.Event()
        link.listen(lambda command, at: self.mailbox.put_nowait(command), self.overtaken.set)

    async def told(self) -> cmd.Command:
        async with asyncio.timeout(30):
            return await self.mailbox.get()

    def hear(self, position: int, data: bytes = b"\x00\x00") -> None:
        audio = fx.InputAudio(data, len(data) // 2, AudioFormat(), 0)
        self.link.relay(fx.Relay("asr", "client", position, position - 1, "input", 1, 0, "", audio), 0.0)

    def commit(self, number: int) -> None:
        self.link.order(fx.Order("asr", number, number - 1, 1, fx.CommitOrder(f"item_{number}", 0, 10)), 0.0)

    async def sent(self, count: int) -> list[tuple[str, int]]:
        """(edge, position) of the next appends."""
        messages = [await self.stream.next() for _ in range(count)]
        return [(message.append.edge, message.append.position) for message in messages]


@pytest.fixture
async def stage() -> AsyncIterator[tuple[Stage, StageLink]]:
    async with replica() as (made, address):
        yield made, StageLink("asr", address, AUTHORITY)


@pytest.fixture
async def opened(stage: tuple[Stage, StageLink]) -> Opened:
    made, link = stage
    opening = asyncio.create_task(link.open(pb.Open(stage="asr", contract_version=1), 5.0))
    stream = await made.stream()
    assert (await stream.next()).WhichOneof("command") == "open"
    stream.say(opened=pb.Opened())
    await opening
    return Opened(link, made, stream)


async def test_a_refusal_to_open_is_told_by_its_code(stage: tuple[Stage, StageLink]) -> None:
    made, link = stage
    opening = asyncio.create_task(link.open(pb.Open(stage="asr"), 5.0))
    (await made.stream()).say(error=pb.StageError(code=pb.StageError.CODE_RESOURCE_EXHAUSTED, message="full"))
    with pytest.raises(StageRefused) as refused:
        await opening
    assert (refused.value.stage, refused.value.code) == ("asr", "RESOURCE_EXHAUSTED")


async def test_a_silent_stage_is_unavailable_after_its_time(stage: tuple[Stage, StageLink]) -> None:
    with pytest.raises(StageRefused) as refused:
        await stage[1].open(pb.Open(stage="asr"), 0.1)
    assert refused.value.code == "UNAVAILABLE"


@pytest.mark.behaviour("M4", "M5")
async def test_what_was_turned_back_goes_again_in_its_first_order_over_all_edges(opened: Opened) -> None:
    for position in (1, 2, 3):
        opened.hear(position)
    assert await opened.sent(3) == [("client", 1), ("client", 2), ("client", 3)]
    opened.stream.say(error=pb.StageError(code=pb.StageError.CODE_LIMIT_EXCEEDED, param="pending_append_bytes"))
    opened.stream.say(accepted=pb.Accepted(watermarks=pb.Watermarks(edges={"client": 1})))
    assert await opened.told() == cmd.StageAccepted("asr", {"client": 1}, 0)
    opened.commit(1)
    opened.hear(4)
    opened.stream.say(gap=pb.Gap(edge="client", watermark=1))
    assert await opened.sent(4) == [("client", 2), ("client", 3), ("core", 1), ("client", 4)]


async def test_an_order_below_the_highest_obeyed_one_may_still_be_owed(opened: Opened) -> None:
    opened.commit(1)
    opened.link.order(fx.Order("asr", 2, 1, 1, fx.CancelOrder(1, 2, "why")), 0.0)
    assert (await opened.stream.next()).append.position == 1 and (await opened.stream.next()).HasField("cancel")
    opened.stream.say(accepted=pb.Accepted(watermarks=pb.Watermarks(command_number=2)))
    await opened.told()
    opened.stream.say(gap=pb.Gap(edge="core", watermark=0))
    assert (await opened.stream.next()).append.payload.control.item_id == "item_1"


@pytest.mark.behaviour("M1", "X16")
async def test_a_commit_does_not_overtake_the_audio_that_it_bounds(opened: Opened) -> None:
    count = COMMIT_LAG_BYTES // len(PIECE) + 2
    for position in range(1, count + 1):
        opened.hear(position, PIECE)
    opened.commit(1)
    await opened.sent(count)
    opened.stream.say(accepted=pb.Accepted(watermarks=pb.Watermarks(edges={"client": 1})))
    await opened.told()
    assert opened.stream.read.empty() and opened.link.pending_bytes > COMMIT_LAG_BYTES
    opened.stream.say(accepted=pb.Accepted(watermarks=pb.Watermarks(edges={"client": count})))
    assert await opened.sent(1) == [("core", 1)]


@pytest.mark.behaviour("X12")
async def test_a_stream_that_ends_is_taken_up_again_from_the_watermarks(opened: Opened) -> None:
    opened.hear(1)
    opened.hear(2)
    opened.link.grant(fx.Grant("asr", 1500))
    await opened.sent(3)
    opened.stream.say(chunk=pb.Chunk(position=5, payload=pb.Payload(text=pb.Text(text="x"))))
    await opened.told()
    opened.stream.end()
    opened.stream = await opened.stage.stream()
    attach = (await opened.stream.next()).attach
    assert (attach.stage, attach.consumed) == ("asr", 5)
    opened.stream.say(attached=pb.Attached(watermarks=pb.Watermarks(edges={"client": 1})))
    assert await opened.sent(1) == [("client", 2)]
    assert (await opened.stream.next()).credit.granted_ms == 1500
    # what it sends again of its outputs is not heard twice
    opened.stream.say(chunk=pb.Chunk(position=5, payload=pb.Payload(text=pb.Text(text="x"))))
    opened.stream.say(chunk=pb.Chunk(position=6, payload=pb.Payload(text=pb.Text(text="y"))))
    told = await opened.told()
    assert isinstance(told, cmd.StageChunk) and told.position == 6


async def test_a_stage_that_does_not_know_the_session_is_lost(opened: Opened) -> None:
    opened.stream.end()
    (await opened.stage.stream()).say(error=pb.StageError(code=pb.StageError.CODE_UNKNOWN_SESSION))
    assert await opened.told() == cmd.StageLost("asr", "unreachable")


async def test_a_stage_that_was_given_up_says_nothing_more(opened: Opened) -> None:
    """Else its late outputs would use up positions that its successor begins with."""
    opened.link.lost("frozen")
    assert await opened.told() == cmd.StageLost("asr", "frozen")
    opened.stream.say(chunk=pb.Chunk(position=1))
    opened.stream.end()
    # the call ends with its last stream: all that the stage said has been read by then
    async with asyncio.timeout(30):
        await opened.stream.call.over.wait()
    assert opened.mailbox.empty()


@pytest.mark.behaviour("L5", "L8")
async def test_a_slot_is_free_when_the_stage_said_so_and_is_asked_for_when_it_could_not(opened: Opened) -> None:
    closing = asyncio.create_task(opened.link.close("why", 5.0))
    assert (await opened.stream.next()).close.reason == "why"
    opened.stream.say(closed=pb.Closed())
    assert await closing and not opened.stage.releases


@pytest.mark.behaviour("L5", "K30")
async def test_a_stream_that_breaks_in_the_close_confirms_nothing(opened: Opened) -> None:
    closing = asyncio.create_task(opened.link.close("why", 5.0))
    await opened.stream.next()
    opened.stream.end()
    assert await closing
    (release,) = opened.stage.releases
    assert (release.stage, release.authority.session_id, release.reason) == ("asr", "sess_1", "why")


async def test_a_commit_that_was_accepted_while_it_waited_to_go_again_holds_nothing_up(opened: Opened) -> None:
    opened.commit(1)
    await opened.sent(1)
    for position in range(1, COMMIT_LAG_BYTES // len(PIECE) + 3):
        opened.hear(position, PIECE)
    # told together: the gap has the commit sent again, the receipt says that it need not be
    opened.stream.say(gap=pb.Gap(edge="core", watermark=0))
    opened.stream.say(accepted=pb.Accepted(watermarks=pb.Watermarks(edges={"core": 1}, command_number=1)))
    await opened.told()
    opened.hear(99)
    while (await opened.stream.next()).append.position != 99:
        pass


async def test_one_acknowledgement_stands_for_all_that_was_consumed_meanwhile(opened: Opened) -> None:
    for position in (1, 2, 3):
        opened.link.ack(position)
    assert (await opened.stream.next()).ack.position == 3
    opened.link.ack(4)
    assert (await opened.stream.next()).ack.position == 4
