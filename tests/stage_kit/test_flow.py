"""Credit, bounds, slots and failures over real gRPC."""

from __future__ import annotations

import asyncio

import msgspec
import numpy as np
import pytest
from parley_stage.v1 import stage_pb2

from stage_kit import Label
from stage_kit.audio import PCM16, Format
from stage_kit.audio_out import AudioOut
from tests.stage_kit.support import INPUT, PCM_24K, WAIT_S, EchoService, Probe, positions, serving, until_set

pytestmark = pytest.mark.usefixtures("carried")

Code = stage_pb2.StageError


def speaker(**fields: int) -> Probe:
    return Probe(output_rate=24000, **fields)


async def test_audio_leaves_as_far_as_the_grand_total_goes() -> None:
    async with serving(speaker(), output_piece_ms=100) as (client, service):
        talk = client.converse()
        await talk.open(output_format=PCM_24K)
        await talk.text("speak 1000")
        await talk.text("behind")
        await talk.send(credit=stage_pb2.Credit(granted_ms=350))
        pieces = [(await talk.read("chunk")).chunk.payload.audio for _ in range(3)]
        assert [piece.start_sample for piece in pieces] == [0, 2400, 4800]
        await talk.send(credit=stage_pb2.Credit(granted_ms=350))  # a repeat grants nothing
        await talk.send(credit=stage_pb2.Credit(granted_ms=100))  # nor does an old total
        await client.held()
        assert service.metrics.registry.get_sample_value("parley_stage_credit_waits_total", {"stage": "probe"}) >= 1
        assert len(positions(talk.seen)) == 3
        await talk.send(credit=stage_pb2.Credit(granted_ms=1000))
        rest = [(await talk.read("chunk")).chunk for _ in range(8)]
        assert sum(chunk.payload.audio.samples for chunk in rest) == 16800 and rest[-1].payload.text.text == "behind"
        assert positions(talk.seen) == list(range(1, 12))


@pytest.mark.parametrize(("window_ms", "samples"), [(1500, 6000), (900, 3600), (300, 2400)])
async def test_pieces_are_as_long_as_the_engine_likes_where_much_may_be_unheard(window_ms: int, samples: int) -> None:
    engine = speaker()
    engine.card = msgspec.structs.replace(engine.card, piece_ms=250)
    async with serving(engine) as (client, _):
        talk = client.converse()
        await talk.open(output_format=PCM_24K)
        await talk.send(credit=stage_pb2.Credit(granted_ms=window_ms))
        await client.held()
        await talk.text("speak 500")
        assert (await talk.read("chunk")).chunk.payload.audio.samples == samples
        await talk.send(credit=stage_pb2.Credit(granted_ms=60_000))  # a later total says nothing of the window
        await client.held()
        await talk.text("speak 500")
        rest = [(await talk.read("chunk")).chunk.payload.audio.samples for _ in range(2 * 12_000 // samples - 1)]
        assert max(rest) == samples


@pytest.mark.parametrize(
    ("window_ms", "longest_ms"), [(1, 1), (100, 50), (101, 50), (150, 75), (201, 101), (300, 200), (600, 500), (900, 500)]
)
def test_no_piece_is_longer_than_may_ever_leave(window_ms: int, longest_ms: int) -> None:
    """Told to make long ones, it would wait for ever; the last 100 ms of a window need not have been granted when nothing is unheard."""
    sound = AudioOut(Format(PCM16, 24_000), 24_000, 500, 250)
    sound.paced(window_ms)
    pieces = sound.push(np.zeros(24_000, np.float32), Label(0, 1, "r1"), (), last=True)
    assert max(piece.audio.samples for piece in pieces) == 24 * longest_ms and sum(piece.audio.samples for piece in pieces) == 24_000


@pytest.mark.parametrize("piece_ms", [None, 1000])
async def test_a_piece_fits_into_a_message(piece_ms: int | None) -> None:
    engine = speaker()
    engine.card = msgspec.structs.replace(engine.card, piece_ms=250)
    loud = stage_pb2.AudioFormat(encoding=stage_pb2.AUDIO_ENCODING_PCM_F32LE, sample_rate_hz=24000)
    async with serving(engine, output_piece_ms=piece_ms, message_bytes=20_000) as (client, _):
        talk = client.converse()
        await talk.open(output_format=loud)
        await talk.send(credit=stage_pb2.Credit(granted_ms=60_000))
        await client.held()
        await talk.text("speak 500")
        samples = 0
        while samples < 12_000:
            samples += (await talk.read("chunk")).chunk.payload.audio.samples
        assert samples == 12_000


async def test_a_cancel_drops_what_waits_for_credit_and_leaves_no_hole() -> None:
    async with serving(speaker()) as (client, _):
        talk = client.converse()
        await talk.open(output_format=PCM_24K)
        await talk.send(credit=stage_pb2.Credit(granted_ms=200))
        await talk.text("speak 5000")
        first = [(await talk.read("chunk")).chunk for _ in range(2)]
        await talk.cancel(0, 1)
        await talk.read("cancelled")
        assert (await client.held())[0].kept_outputs == 2
        await talk.text("next", epoch=1)
        chunk = (await talk.read("chunk")).chunk
        assert (chunk.position, chunk.payload.text.text) == (len(first) + 1, "next")


@pytest.mark.behaviour("X10")
async def test_audio_leaves_before_the_receipt_of_its_unit() -> None:
    async with serving(speaker()) as (client, _):
        talk = client.converse()
        await talk.open(output_format=PCM_24K)
        await talk.send(credit=stage_pb2.Credit(granted_ms=10_000))
        await talk.text("unit 7")
        receipt = (await talk.read("unit_done")).unit_done
        assert (receipt.unit, receipt.consumed_ms, receipt.position) == (7, 1000, 1)
        kinds = [message.WhichOneof("event") for message in talk.seen]
        assert kinds.index("chunk") < kinds.index("unit_done")


@pytest.mark.behaviour("X13")
async def test_a_slow_reader_costs_bounded_memory_and_slows_nobody() -> None:
    bound = 20_000
    async with serving(Probe(), kept_output_bytes=bound, message_bytes=1024 * 1024) as (client, _):
        slow, quick = client.converse("slow"), client.converse("quick")
        await slow.open()
        await quick.open()
        for _ in range(30):
            await slow.text("fill 10", response="long")
        for index in range(20):
            await quick.text(f"q{index}")
            assert await quick.texts(1) == [f"q{index}"]
            await quick.send(ack=stage_pb2.Ack(position=index + 1))
        async with asyncio.timeout(WAIT_S):
            while (held := (await client.held("slow"))[0]).kept_bytes < bound:
                pass
        assert held.kept_bytes <= bound + 11_000
        for _ in range(15):
            await slow.read("chunk")
        read = 0
        while read < 300:  # every ack makes room for the next steps, and nothing was lost
            read = positions(slow.seen)[-1]
            await slow.send(ack=stage_pb2.Ack(position=read))
            if read < 300:
                await slow.read("chunk")
        assert positions(slow.seen) == list(range(1, 301))


@pytest.mark.behaviour("K33")
async def test_an_engine_that_overruns_its_bound_fails_its_response_only() -> None:
    async with serving(Probe(), kept_output_bytes=10_000) as (client, _):
        talk = client.converse()
        await talk.open()
        await talk.text("fill 100", response="r1")
        async with asyncio.timeout(WAIT_S):
            while not (chunk := (await talk.read("chunk")).chunk).last:
                pass
        assert (chunk.finish.error.code, chunk.finish.error.param) == (Code.CODE_LIMIT_EXCEEDED, "kept_output_bytes")
        await talk.send(ack=stage_pb2.Ack(position=chunk.position))
        await talk.text("next", response="r2")
        assert await talk.texts(1) == ["next"]


async def test_an_append_at_its_limit_passes_and_one_byte_more_is_refused() -> None:
    engine = Probe()
    async with serving(engine, append_bytes=1000) as (client, _):
        talk = client.converse()
        await talk.open()
        overhead = stage_pb2.Append(edge="core", position=1, lane=2, payload={"text": {"text": "x" * 900}}).ByteSize() - 900
        await talk.text("x" * (1000 - overhead))
        assert len((await talk.texts(1))[0]) == 1000 - overhead
        await talk.text("x" * (1000 - overhead), position=2)  # `previous` takes two bytes more
        error = (await talk.read("error")).error
        assert (error.code, error.param) == (Code.CODE_LIMIT_EXCEEDED, "append_bytes")


@pytest.mark.behaviour("K33", "B2")
async def test_a_full_queue_turns_back_and_says_when_to_go_on() -> None:
    engine = Probe()
    async with serving(engine, pending_append_bytes=3000) as (client, _):
        talk = client.converse()
        await talk.open()
        engine.gate.clear()
        await talk.text("long")
        await until_set(engine.busy)
        words = ["x" * 999 + str(index) for index in range(6)]
        for word in words:
            await talk.text(word)
        error = (await talk.read("error")).error
        assert (error.code, error.param, error.session_ended) == (Code.CODE_LIMIT_EXCEEDED, "pending_append_bytes", False)
        engine.gate.set()
        watermark = (await talk.read("gap")).gap.watermark
        assert watermark == 3  # "long" and two more
        assert [len(text) for text in await talk.texts(3)] == [4, 1000, 1000]
        assert sum(message.WhichOneof("event") == "error" for message in talk.seen) == 1
        for position, word in enumerate(words[2:], watermark + 1):
            await talk.text(word, position=position, previous=position - 1)
            assert await talk.texts(1) == [word]


@pytest.mark.behaviour("L6")
async def test_opens_never_exceed_the_slots_and_a_duplicate_touches_nothing() -> None:
    engine = Probe(slots=2)
    async with serving(engine) as (client, _):
        talks = [client.converse(f"s{index}") for index in range(6)]
        await asyncio.gather(*(talk.begin() for talk in talks))
        async with asyncio.timeout(WAIT_S):
            answers = [(await talk._call.read()) for talk in talks]
        kinds = [answer.WhichOneof("event") for answer in answers]
        assert sorted(kinds) == ["error"] * 4 + ["opened"] * 2
        assert {answer.error.code for answer in answers if answer.WhichOneof("event") == "error"} == {Code.CODE_RESOURCE_EXHAUSTED}
        winner = talks[kinds.index("opened")]
        await winner.open()  # again, on the same stream
        await winner.text("alive")
        assert await winner.texts(1) == ["alive"]
        assert len(await client.held()) == 2 and [entry[0] for entry in engine.log].count("open") == 2
        await winner.close()
        await winner.read("closed")
        fresh = client.converse("fresh")
        await fresh.open()


@pytest.mark.behaviour("L7")
async def test_an_abandoned_session_returns_its_slot() -> None:
    engine = Probe(slots=1)
    async with serving(engine, detached_ttl_s=0.1) as (client, _):
        talk = client.converse()
        await talk.open()
        await talk.hang_up()
        await client.until_held(0)
        assert engine.log[-1] == ("close", "s1")
        late = client.converse(attachment=2)
        await late.send(attach=stage_pb2.Attach(stage="probe", contract_version=1))
        assert (await late.read("error")).error.code == Code.CODE_UNKNOWN_SESSION


@pytest.mark.behaviour("L7")
async def test_a_release_frees_and_a_late_open_of_it_is_refused() -> None:
    async with serving(Probe()) as (client, _):
        talk = client.converse("never")
        answer = await client.stub.Release(stage_pb2.ReleaseRequest(authority=talk.authority, stage="probe"))
        assert not answer.released and not answer.HasField("error")
        await talk.begin()
        assert (await talk.read("error")).error.code == Code.CODE_STALE_AUTHORITY
        other = client.converse("held")
        await other.open()
        request = stage_pb2.ReleaseRequest(authority=other.with_authority(attachment=9, holder_id="reaper"), stage="probe")
        assert (await client.stub.Release(request)).released
        assert (await other.read("closed")).closed.reason == "" and await client.held() == []


async def test_a_failed_open_leaves_nothing() -> None:
    engine = Probe(slots=1)
    async with serving(engine) as (client, _):
        engine.refuse_open = MemoryError()
        talk = client.converse()
        await talk.begin()
        error = (await talk.read("error")).error
        assert error.code == Code.CODE_RESOURCE_EXHAUSTED and error.session_ended
        engine.refuse_open = RuntimeError("a secret")
        talk = client.converse()
        await talk.begin()
        error = (await talk.read("error")).error
        assert error.code == Code.CODE_ENGINE_FAILED and "secret" not in error.message
        engine.refuse_open = None
        await client.converse().open()  # the same authority may try again


@pytest.mark.behaviour("L5")
async def test_a_slot_that_cannot_be_closed_stays_taken_until_it_can() -> None:
    engine = Probe(slots=1)
    engine.close_failures = 2
    async with serving(engine) as (client, _):
        talk = client.converse()
        await talk.open()
        await talk.close()
        other = client.converse("other")
        await other.begin()
        assert (await other.read("error")).error.code == Code.CODE_RESOURCE_EXHAUSTED
        await talk.read("closed")
        await client.converse("other").open()


@pytest.mark.behaviour("S1", "S2")
async def test_what_fails_alone_fails_alone() -> None:
    engine = Probe()
    async with serving(engine) as (client, _):
        talks = [client.converse(f"s{index}") for index in range(3)]
        for talk in talks:
            await talk.open()
        engine.gate.clear()
        await talks[0].text("first")
        await until_set(engine.busy)
        for talk, word in zip(talks, ("zero", "boom", "two"), strict=True):
            await talk.text(word, response=f"r-{word}")
        await client.until_waiting([1, 1, 1])
        engine.gate.set()
        assert await talks[0].texts(2) == ["first", "zero"]
        failed = (await talks[1].read("chunk")).chunk
        assert failed.last and failed.finish.reason == stage_pb2.Finish.REASON_FAILED and failed.label.response_id == "r-boom"
        two = (await talks[2].read("chunk")).chunk
        assert (two.payload.text.text, two.label.response_id) == ("two", "r-two")
        await talks[1].text("well", response="r-well")
        assert await talks[1].texts(1) == ["well"]
        assert ["s0", "s1", "s2"] in [sorted(batch) for batch in engine.batches]


async def test_a_session_whose_engine_keeps_failing_ends_and_only_it() -> None:
    async with serving(Probe(), step_failures_count=2) as (client, _):
        bad, good = client.converse("bad"), client.converse("good")
        await bad.open()
        await good.open()
        for response in ("r1", "r2"):
            await bad.text("boom", response=response)
        error = (await bad.read("error")).error
        assert error.code == Code.CODE_ENGINE_FAILED and error.session_ended
        await bad.read("closed")
        await good.text("fine")
        assert await good.texts(1) == ["fine"]


async def test_an_outside_service_is_cancelled_with_its_epoch_and_its_failure_is_typed() -> None:
    engine = EchoService()
    async with serving(engine) as (client, _):
        talk = client.converse(stage="remote")
        await talk.open()
        await talk.text("old", response="r1")
        assert await asyncio.wait_for(engine.asked.get(), WAIT_S) == "old"
        await talk.cancel(0, 1)
        await talk.read("cancelled")
        await talk.text("new", epoch=1, response="r2", last=True)
        assert await asyncio.wait_for(engine.asked.get(), WAIT_S) == "new"
        engine.gate.set()
        chunk = (await talk.read("chunk")).chunk
        assert (chunk.payload.text.text, chunk.last) == ("new", True) and engine.cancelled == ["old"]
        await talk.text("boom", epoch=1, response="r3")
        assert (await talk.read("chunk")).chunk.finish.error.code == Code.CODE_UPSTREAM_FAILED
        await talk.close()
        await talk.read("closed")


async def test_resampled_input_arrives_whole_at_a_commit() -> None:
    engine = Probe(input_rate=16000)
    async with serving(engine) as (client, _):
        talk = client.converse()
        await talk.open(input_format=PCM_24K)
        for index in range(10):
            audio = stage_pb2.Audio(format=PCM_24K, data=bytes(960), samples=480, start_sample=index * 480)
            await talk.append(stage_pb2.Payload(audio=audio), Label(), edge="client", lane=INPUT)
        commit = stage_pb2.Control(kind=stage_pb2.Control.KIND_COMMIT, item_id="i1", start_ms=0, end_ms=200)
        await talk.append(stage_pb2.Payload(control=commit), Label(), lane=INPUT)
        await talk.text("done", position=2)
        assert await talk.texts(1) == ["done"]
        heard = engine.heard["s1"]
        assert sum(len(append.samples) for append in heard if append.samples is not None) == 3200
        assert heard[-2].payload.WhichOneof("value") == "control" and heard[-3].samples is not None
        assert (heard[4].start_ms, heard[4].end_ms) == (80, 100)
        wrong = stage_pb2.Audio(format=PCM_24K, data=bytes(959), samples=480)
        await talk.append(stage_pb2.Payload(audio=wrong), Label(), edge="client", lane=INPUT)
        assert (await talk.read("error")).error.param == "audio.samples"
