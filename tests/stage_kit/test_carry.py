"""Many streams on one call: each ends alone, none holds up another, and nothing grows without a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from parley_stage.v1 import stage_pb2

from stage_kit.carrier import PARCEL_BYTES, Carrier
from stage_kit.settings import Settings
from tests.stage_kit import support
from tests.stage_kit.support import WAIT_S, Carry, Conversation, Probe, StageClient, positions, serving, until_set

Code = stage_pb2.StageError


@pytest.fixture(autouse=True)
def carried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "CARRIED", True)


def carry_of(client: StageClient) -> Carry:
    assert client.carry is not None
    return client.carry


def chunks(carry: Carry) -> Iterator[tuple[int, str]]:
    """(stream, text) of all that came, in order."""
    for batch in carry.batches:
        for parcel in batch.parcels:
            if parcel.message.HasField("chunk"):
                yield parcel.stream, parcel.message.chunk.payload.text.text


async def both_open(client: StageClient, **fields: object) -> tuple[Conversation, Conversation]:
    one, two = client.converse("s1"), client.converse("s2")
    await asyncio.gather(one.open(**fields), two.open(**fields))
    return one, two


async def test_a_stream_that_is_refused_ends_alone() -> None:
    async with serving(Probe()) as (client, _):
        one, two = await both_open(client)
        stranger = client.converse("nobody")
        await stranger.send(attach=stage_pb2.Attach(stage="probe", contract_version=1))
        assert (await stranger.read("error")).error.code == Code.CODE_UNKNOWN_SESSION
        assert await stranger.ended() == []
        nowhere = client.converse("s3", stage="other")
        await nowhere.begin()
        assert (await nowhere.read("error")).error.code == Code.CODE_INCOMPATIBLE
        for talk, word in ((one, "a"), (two, "b")):
            await talk.text(word)
            assert await talk.texts(1) == [word]


async def test_a_message_to_an_ended_stream_is_nobodys() -> None:
    async with serving(Probe()) as (client, _):
        one, two = await both_open(client)
        await one.close()
        await one.ended()
        await one.begin()  # on a number that is over
        await two.text("b")
        assert await two.texts(1) == ["b"]
        assert [held.session_id for held in await client.held()] == ["s2"]


async def test_a_stream_that_is_left_leaves_its_session() -> None:
    async with serving(Probe()) as (client, _):
        one, two = await both_open(client)
        await one.text("a")
        assert await one.texts(1) == ["a"]
        await one.hang_up()
        async with asyncio.timeout(WAIT_S):
            while [held.attached for held in await client.held("s1")] != [False]:
                pass  # every look is a call, so the service gets its turns
        again = client.converse("s1", attachment=2)
        assert (await again.attach(0)).last == 1
        assert await again.texts(1) == ["a"]
        await two.text("b")
        assert await two.texts(1) == ["b"]


async def test_a_broken_call_leaves_every_session_to_the_next() -> None:
    async with serving(Probe()) as (client, _):
        for talk, word in zip(await both_open(client), ("a", "b"), strict=True):
            await talk.text(word)
            assert await talk.texts(1) == [word]
        carry_of(client).call.cancel()
        async with asyncio.timeout(WAIT_S):
            while [held.attached for held in await client.held()] != [False, False]:
                pass
        client.carry = Carry(client.stub)
        for session, word in (("s1", "a"), ("s2", "b")):
            again = client.converse(session, attachment=2)
            attached = await again.attach(0)
            assert (attached.last, dict(attached.watermarks.edges)) == (1, {"core": 1})
            assert await again.texts(1) == [word]


@pytest.mark.behaviour("M5")
async def test_a_session_with_much_to_say_takes_turns_with_the_others() -> None:
    """Both begin to speak in one step, behind another session's."""
    engine = Probe()
    async with serving(engine) as (client, _):
        one, two = await both_open(client)
        before = client.converse("s3")
        await before.open()
        engine.gate.clear()
        await before.text("before")
        await until_set(engine.busy)
        carry_of(client).reads.clear()
        await one.text("fill 3000")
        await two.text("short")
        await client.until_waiting([1, 1, 0])
        engine.gate.set()
        async with asyncio.timeout(WAIT_S):
            while [held.kept_outputs for held in await client.held()] != [3000, 1, 1]:
                pass
        carry_of(client).reads.set()
        assert await two.texts(1) == ["short"]
        await one.texts(3000)
        # a batch has about 500 of them: it waits for the few on their way, not for all three megabytes
        assert list(chunks(carry_of(client))).index((2, "short")) < 2000
        assert positions(one.seen) == list(range(1, 3001))


async def test_a_batch_has_at_most_half_of_the_largest_message() -> None:
    async with serving(Probe(), message_bytes=32 * 1024) as (client, _):
        one, two = await both_open(client)
        await one.text("fill 100")
        await two.text("fill 100")
        await asyncio.gather(one.texts(100), two.texts(100))
        sizes = [batch.ByteSize() for batch in carry_of(client).batches]
        assert max(sizes) <= 16 * 1024 and len([size for size in sizes if size > 15 * 1024]) >= 10


async def test_an_output_that_no_call_can_carry_ends_its_own_stream_only() -> None:
    filled = 1000  # bytes of a text, without what describes it
    async with serving(Probe(), message_bytes=filled) as (client, _):
        one, two = await both_open(client)
        word = "x" * (filled * 9 // 10)
        await two.text(word)
        assert await two.texts(1) == [word] and len(word) < filled - PARCEL_BYTES
        await one.text("fill 1")
        assert positions(await one.ended()) == []
        await two.text("words")
        assert await two.texts(1) == ["words"]
        assert [(held.session_id, held.attached) for held in await client.held()] == [("s1", False), ("s2", True)]


async def test_streams_of_one_call_are_bounded() -> None:
    async with serving(Probe(), carried_streams_count=2) as (client, _):
        one, two = await both_open(client)
        three = client.converse("s3")
        await three.begin()
        error = (await three.read("error")).error
        assert (error.code, error.param) == (Code.CODE_LIMIT_EXCEEDED, "carried_streams_count")
        assert await three.ended() == []
        await one.close()
        await one.ended()
        again = client.converse("s3")
        await again.open()
        for talk in (two, again):
            await talk.text("on")
            assert await talk.texts(1) == ["on"]


async def test_refusals_that_nobody_reads_end_the_call() -> None:
    async with serving(Probe(), carried_streams_count=1, pending_replies_count=3) as (client, _):
        carry, talk = carry_of(client), client.converse("s1")
        await talk.open()
        authority = stage_pb2.Authority(session_id="s2", placement=1)
        attach = stage_pb2.ToStage(authority=authority, attach=stage_pb2.Attach(stage="probe", contract_version=1))
        # taken in one go: no refusal can leave between them
        await carry.write(*(stage_pb2.ToStageParcel(stream=carry.begin().number, message=attach) for _ in range(3)))
        await talk.text("still there")
        assert await talk.texts(1) == ["still there"]
        await carry.write(*(stage_pb2.ToStageParcel(stream=carry.begin().number, message=attach) for _ in range(4)))
        assert await talk.ended() == []
        assert [held.session_id for held in await client.held()] == ["s1"]


@pytest.mark.parametrize(("count", "rests"), [(1, True), (3, False)])
async def test_a_call_rests_between_two_batches_but_not_where_one_was_full(
    monkeypatch: pytest.MonkeyPatch, count: int, rests: bool
) -> None:
    rested: list[float] = []

    async def sleep(seconds: float) -> None:
        rested.append(seconds)

    carrier = Carrier(Settings())
    streams = [carrier.stream(stage_pb2.ToStageParcel(stream=number, message=stage_pb2.ToStage())) for number in range(1, 201)]
    monkeypatch.setattr("stage_kit.carrier.asyncio.sleep", sleep)
    text = "x" * (Settings().message_bytes // 3)
    for stream in streams[:count]:
        assert stream is not None
        stream.reply(stage_pb2.FromStage(error=stage_pb2.StageError(message=text)))
    batch = await carrier.next()
    assert batch is not None and len(batch.parcels) == 1 and not rested
    if count == 1:
        assert streams[0] is not None
        streams[0].reply(stage_pb2.FromStage(error=stage_pb2.StageError(message=text)))
    assert await carrier.next() is not None
    assert bool(rested) is rests
