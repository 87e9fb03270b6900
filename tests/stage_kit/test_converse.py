"""The contract over real gRPC: fences, control ahead of appends, order, configuration."""

from __future__ import annotations

import asyncio

import pytest
from parley_stage.v1 import stage_pb2

from stage_kit import Label
from tests.stage_kit.support import INPUT, Probe, positions, serving, until_set

pytestmark = pytest.mark.usefixtures("carried")

Code = stage_pb2.StageError


async def test_an_echo_passes_labels_and_counts_positions() -> None:
    async with serving(Probe()) as (client, _):
        talk = client.converse()
        opened = await talk.open()
        assert not opened.opened.watermarks.edges
        for word in ("a", "b", "c"):
            await talk.text(word, response="r7")
        chunks = [(await talk.read("chunk")).chunk for _ in range(3)]
        assert [(c.position, c.payload.text.text, c.label.response_id) for c in chunks] == [(1, "a", "r7"), (2, "b", "r7"), (3, "c", "r7")]
        accepted = [m.accepted.watermarks.edges["core"] for m in talk.seen if m.WhichOneof("event") == "accepted"]
        assert accepted == sorted(accepted) and accepted


async def test_accepted_is_told_without_anything_to_ride_on() -> None:
    async with serving(Probe(input_rate=16000), accepted_interval_ms=20) as (client, _):
        talk = client.converse()
        await talk.open(input_format={"encoding": 1, "sample_rate_hz": 16000})
        audio = stage_pb2.Audio(format={"encoding": 1, "sample_rate_hz": 16000}, data=bytes(640), samples=320)
        await talk.append(stage_pb2.Payload(audio=audio), Label(), edge="client", lane=INPUT)
        assert (await talk.read("accepted")).accepted.watermarks.edges["client"] == 1


@pytest.mark.behaviour("F3")
async def test_a_cancel_without_a_next_epoch_changes_nothing() -> None:
    engine = Probe()
    async with serving(engine) as (client, _):
        talk = client.converse()
        await talk.open()
        await talk.text("one", epoch=3)
        assert await talk.texts(1) == ["one"]
        await talk.cancel(3, 3)
        error = (await talk.read("error")).error
        assert error.code == Code.CODE_FAILED_PRECONDITION and not error.session_ended
        await talk.text("two", epoch=3)
        assert await talk.texts(1) == ["two"]
        assert engine.log.count(("cancelled", "s1")) == 1  # the epoch rose from 0 with the first append, and not since


@pytest.mark.behaviour("F2", "F4", "K29")
async def test_after_a_cancel_old_work_is_counted_and_forgotten() -> None:
    engine = Probe()
    async with serving(engine) as (client, _):
        talk = client.converse()
        await talk.open()
        await talk.cancel(0, 1)
        assert (await talk.read("cancelled")).cancelled.epoch == 1
        await talk.text("old", epoch=0)
        await talk.text("new", epoch=1)
        assert await talk.texts(1) == ["new"]
        await talk.cancel(0, 1)  # a retry cleans up and never advances
        assert (await talk.read("cancelled")).cancelled.epoch == 1
        assert [append.payload.text.text for append in engine.heard["s1"]] == ["new"]
        accepted = [m.accepted.watermarks.edges["core"] for m in talk.seen if m.WhichOneof("event") == "accepted"]
        assert accepted[-1] == 2


@pytest.mark.behaviour("F5", "F6", "F9", "M5", "K29")
async def test_control_is_executed_while_a_step_runs() -> None:
    engine = Probe()
    async with serving(engine) as (client, _):
        talk = client.converse(attachment=5)
        await talk.open()
        engine.gate.clear()
        await talk.text("long")
        await until_set(engine.busy)
        for word in ("queued", "too"):
            await talk.text(word)
        for stale in ({"attachment": 4}, {"holder_id": "g2"}, {"placement": 0}):
            release = stage_pb2.ReleaseRequest(authority=talk.with_authority(**stale), stage="probe")
            assert (await client.stub.Release(release)).error.code == Code.CODE_STALE_AUTHORITY
        thief = client.converse(attachment=4)
        await thief.send(attach=stage_pb2.Attach(stage="probe", contract_version=1))
        assert (await thief.read("error")).error.code == Code.CODE_STALE_AUTHORITY
        assert await thief.ended() == []
        await talk.cancel(0, 0)
        assert (await talk.read("error")).error.code == Code.CODE_FAILED_PRECONDITION
        await talk.cancel(0, 1)
        assert (await talk.read("cancelled")).cancelled.epoch == 1
        assert engine.busy.is_set()
        engine.gate.set()
        await talk.text("after", epoch=1)
        assert await talk.texts(1) == ["after"]
        assert positions(talk.seen) == [1]  # what the running step made never got a position
        assert [append.payload.text.text for append in engine.heard["s1"]] == ["long", "after"]


@pytest.mark.behaviour("F6", "K34")
async def test_close_overtakes_queued_appends() -> None:
    engine = Probe()
    async with serving(engine) as (client, _):
        talk = client.converse()
        await talk.open()
        engine.gate.clear()
        await talk.text("long")
        await until_set(engine.busy)
        await talk.text("queued")
        await talk.close()
        assert len(await client.held()) == 1  # the slot is held until the engine let go
        engine.gate.set()
        assert (await talk.read("closed")).closed.reason == "test"
        assert await talk.ended() == []
        assert engine.log[-1] == ("close", "s1") and await client.held() == []
        assert [append.payload.text.text for append in engine.heard["s1"]] == ["long"]


@pytest.mark.behaviour("F8", "F5", "K29")
async def test_a_stale_close_keeps_the_session() -> None:
    async with serving(Probe()) as (client, _):
        talk = client.converse(attachment=5, holder="g1")
        await talk.open()
        for stale in ({"attachment": 4}, {"holder_id": "g2"}, {"placement": 2}):
            other = client.converse()
            await other.send(authority=talk.with_authority(**stale), attach=stage_pb2.Attach(stage="probe", contract_version=1))
            assert (await other.read("error")).error.code == Code.CODE_STALE_AUTHORITY
            request = stage_pb2.ReleaseRequest(authority=talk.with_authority(**{**stale, "placement": 1}), stage="probe")
            if "placement" not in stale:
                assert (await client.stub.Release(request)).error.code == Code.CODE_STALE_AUTHORITY
        await talk.text("alive")
        assert await talk.texts(1) == ["alive"]
        await talk.close(authority=talk.with_authority(attachment=4))
        assert (await talk.read("error")).error.code == Code.CODE_STALE_AUTHORITY
        assert await talk.ended() == []
        assert [held.session_id for held in await client.held()] == ["s1"]


@pytest.mark.behaviour("F7", "K29")
async def test_a_closed_placement_never_speaks_to_the_next_session() -> None:
    engine = Probe()
    async with serving(engine) as (client, _):
        first = client.converse()
        await first.open()
        second = client.converse(placement=2)
        await second.open()
        assert (await first.read("error")).error.code == Code.CODE_STALE_AUTHORITY
        again = client.converse(placement=1)
        await again.begin()
        assert (await again.read("error")).error.code == Code.CODE_STALE_AUTHORITY
        await second.text("late", response="r1", number=0)
        assert await second.texts(1) == ["late"]
        await second.close()
        await second.read("closed")
        reopened = client.converse(placement=2)
        await reopened.begin()
        assert (await reopened.read("error")).error.code == Code.CODE_STALE_AUTHORITY
        assert engine.log.count(("open", "s1")) == 2


async def test_a_takeover_ends_the_old_stream_and_the_old_gateway_is_refused() -> None:
    async with serving(Probe()) as (client, _):
        old = client.converse(attachment=1, holder="g1")
        await old.open()
        await old.text("kept")
        assert await old.texts(1) == ["kept"]
        new = client.converse(attachment=2, holder="g2")
        attached = await new.attach(consumed=0)
        assert (attached.last, attached.first_kept, dict(attached.watermarks.edges)) == (1, 1, {"core": 1})
        assert (await old.read("error")).error.code == Code.CODE_STALE_AUTHORITY
        assert await old.ended() == []
        chunk = (await new.read("chunk")).chunk
        assert (chunk.position, chunk.payload.text.text) == (1, "kept")


@pytest.mark.behaviour("M3")
async def test_an_update_takes_effect_with_the_first_append_of_its_generation() -> None:
    engine = Probe()
    async with serving(engine) as (client, _):
        talk = client.converse()
        await talk.open('{"v": 1}')
        await talk.send(update=stage_pb2.Update(config_generation=2, config_json='{"v": 2}'))
        assert not (await talk.read("updated")).updated.HasField("error")
        await talk.text("before", config_generation=1)
        await talk.text("after", config_generation=2)
        await talk.texts(2)
        await talk.send(update=stage_pb2.Update(config_generation=3, config_json='{"bad": 1}'))
        refused = (await talk.read("updated")).updated
        assert (refused.config_generation, refused.error.code, refused.error.param) == (3, Code.CODE_INVALID_ARGUMENT, "bad")
        await talk.text("still", config_generation=3)
        await talk.texts(1)
        assert engine.configs == [("before", {"v": 1}), ("after", {"v": 2}), ("still", {"v": 2})]


@pytest.mark.behaviour("A1", "A2")
async def test_positions_make_every_append_count_once() -> None:
    engine = Probe()
    async with serving(engine) as (client, _):
        talk = client.converse()
        await talk.open()
        from stage_kit.edges import checksum

        payload = stage_pb2.Payload(text=stage_pb2.Text(text="a"))
        good, bad = checksum(payload), checksum(payload) ^ 1
        await talk.append(payload, Label(), position=1, checksum=bad)
        assert (await talk.read("error")).error.param == "append.checksum"  # nothing was counted
        await talk.append(payload, Label(), position=1, checksum=good)
        await talk.append(payload, Label(), position=1, checksum=good)  # a retry
        await talk.append(payload, Label(), position=1, checksum=bad)  # the same position, other metadata
        assert (await talk.read("error")).error.param == "append.checksum"
        await talk.append(payload, Label(), position=4, previous=3)
        gap = (await talk.read("gap")).gap
        assert (gap.edge, gap.watermark) == ("core", 1)
        await talk.append(payload, Label(), position=4, previous=1)  # positions may skip
        await talk.append(payload, Label(), position=2, previous=1)
        await talk.text("end")
        assert (await talk.texts(3))[-1] == "end"
        assert [append.position for append in engine.heard["s1"]] == [1, 4, 5]


async def test_each_command_number_is_obeyed_once() -> None:
    engine = Probe()
    async with serving(engine) as (client, _):
        talk = client.converse()
        await talk.open()
        await talk.text("seven", number=7, position=2, previous=1)  # turned back: it comes again
        await talk.read("gap")
        await talk.cancel(0, 1, number=8)
        await talk.read("cancelled")
        await talk.text("one", epoch=1, position=1, previous=0, number=5)  # an old number that was never turned back
        await talk.text("seven", epoch=1, number=7, position=2, previous=1)
        assert await talk.texts(1) == ["seven"]
        attached = await talk.attach(consumed=1)
        assert attached.watermarks.command_number == 8 and attached.watermarks.edges["core"] == 2


@pytest.mark.behaviour("M5")
async def test_the_input_lane_knows_no_epoch() -> None:
    engine = Probe()
    async with serving(engine) as (client, _):
        talk = client.converse()
        await talk.open()
        await talk.cancel(0, 9)
        await talk.read("cancelled")
        await talk.text("spoken", epoch=9, response="", lane=INPUT, edge="client")
        assert await talk.texts(1) == ["spoken"]
        clear = stage_pb2.Payload(control=stage_pb2.Control(kind=stage_pb2.Control.KIND_CLEAR))
        await talk.append(clear, Label(), lane=INPUT, edge="core", input_generation=1)
        await talk.text("late", response="", lane=INPUT, edge="client", input_generation=0)
        await talk.text("barge-in", epoch=0, lane=INPUT, edge="client", input_generation=1)
        await talk.text("fresh", epoch=9, lane=INPUT, edge="client", input_generation=1)
        assert await talk.texts(1) == ["fresh"]
        heard = [append.payload.text.text for append in engine.heard["s1"] if append.payload.WhichOneof("value") == "text"]
        assert heard == ["spoken", "barge-in", "fresh"] and ("cleared", "s1") in engine.log


async def test_a_broken_stream_closes_nothing_and_outputs_come_again() -> None:
    async with serving(Probe()) as (client, _):
        talk = client.converse()
        await talk.open()
        for word in ("a", "b", "c"):
            await talk.text(word)
        await talk.texts(3)
        await talk.send(ack=stage_pb2.Ack(position=1))
        await talk.hang_up()
        again = client.converse()
        attached = await again.attach(consumed=2)
        assert (attached.first_kept, attached.last) == (2, 3)
        chunk = (await again.read("chunk")).chunk
        assert (chunk.position, chunk.payload.text.text) == (3, "c")
        await again.text("d", position=4, previous=3)
        assert (await again.read("chunk")).chunk.position == 4


async def test_cancelled_outputs_keep_their_positions_as_empty_chunks() -> None:
    async with serving(Probe()) as (client, _):
        talk = client.converse()
        await talk.open()
        await talk.text("secret")
        await talk.texts(1)
        await talk.hang_up()
        again = client.converse(attachment=2)
        await again.attach(consumed=1)
        await again.cancel(0, 1)
        await again.read("cancelled")
        await again.text("new", epoch=1, position=2, previous=1)
        await again.read("chunk")
        third = client.converse(attachment=3)
        await third.attach(consumed=0)
        empty, new = [(await third.read("chunk")).chunk for _ in range(2)]
        assert (empty.position, empty.HasField("payload"), empty.last, empty.label.response_id) == (1, False, False, "")
        assert (new.position, new.payload.text.text) == (2, "new")


async def test_bad_messages_are_refused_by_name_and_change_nothing() -> None:
    async with serving(Probe()) as (client, _):
        early = client.converse()
        await early.text("hello")
        assert (await early.read("error")).error.code == Code.CODE_FAILED_PRECONDITION
        lost = client.converse(session="nobody")
        await lost.send(attach=stage_pb2.Attach(stage="probe", contract_version=1))
        assert (await lost.read("error")).error.code == Code.CODE_UNKNOWN_SESSION
        for fields, code, param in (
            ({"contract_version": 9}, Code.CODE_INCOMPATIBLE, "contract_version"),
            ({"config_json": "{"}, Code.CODE_INVALID_ARGUMENT, "config_json"),
            ({"config_json": "[]"}, Code.CODE_INVALID_ARGUMENT, "config_json"),
            ({"config_json": '{"bad": 1}'}, Code.CODE_INVALID_ARGUMENT, "bad"),
            ({"stage": "other"}, Code.CODE_INCOMPATIBLE, "stage"),
        ):
            wrong = client.converse(session="w")
            await wrong.send(open=stage_pb2.Open(**{"stage": "probe", "contract_version": 1, **fields}))
            error = (await wrong.read("error")).error
            assert (error.code, error.param) == (code, param)
            assert await wrong.ended() == []
        talk = client.converse()
        await talk.open()
        text = stage_pb2.Payload(text=stage_pb2.Text(text="x"))
        for payload, fields, param in (
            (text, {"lane": 0}, "append.lane"),
            (text, {"edge": "", "position": 1}, "append.edge"),
            (None, {"position": 1}, "append.payload"),
            (stage_pb2.Payload(codes=stage_pb2.Codes()), {"position": 1}, "append.payload"),
        ):
            await talk.append(payload, Label(), **fields)
            assert (await talk.read("error")).error.param == param
        await talk.send(ack=stage_pb2.Ack(position=5))
        assert (await talk.read("error")).error.param == "ack.position"
        await talk.text("fine", position=1, previous=0)
        assert await talk.texts(1) == ["fine"]


async def test_a_half_closed_stream_still_hears_closed() -> None:
    async with serving(Probe()) as (client, _):
        talk = client.converse()
        await talk.begin()
        await talk.close()
        await talk._call.done_writing()
        rest = await asyncio.wait_for(talk.ended(), 5)
        assert rest[-1].WhichOneof("event") == "closed"
