"""When a session comes back, when it does not, and what its user is told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time

import msgspec
import pytest
from websockets.asyncio.client import connect as open_websocket

import parley
from parley import Limits, Session, events
from parley.client.connection import realtime_url

from .lasting import Cut, House, serving, signal
from .realtime import Peer, realtime_server

QUICK = Limits(backoff_first_s=0.002, backoff_max_s=0.02, grace_s=10, resume_timeout_s=2)


def quick(**changes: float) -> Limits:
    return msgspec.structs.replace(QUICK, **changes)


async def until_item(session: Session, text: str) -> list[events.Event]:
    """Creates an item and returns all events up to its arrival."""
    await session.create_item(text)
    told = []
    async for event in session:
        told.append(event)
        if isinstance(event, events.ItemAdded) and event.item.text == text:
            break
    return told


async def test_the_user_sees_one_conversation_and_a_note() -> None:
    house, states = House(), list[str]()
    async with serving(house) as url, asyncio.timeout(10):
        async with parley.connect(url, "key", "m", limits=QUICK, on_state=states.append) as session:
            assert session.resumable
            await session.send_audio(signal(100))
            await until_item(session, "one")
            await house.cut()
            told = await until_item(session, "two")
            await house.cut()
            again = await until_item(session, "three")
        await asyncio.sleep(0)
    assert [type(event) for event in told] == [type(event) for event in again] == [events.Resumed, events.ItemAdded]
    assert isinstance(told[0], events.Resumed)
    assert (told[0].seq, told[0].input_samples, told[0].client_seq) == (2, 100, 1)
    assert states == ["connected", "reconnecting", "connected", "reconnecting", "connected", "ended"]
    assert house.dials == ["/v1/realtime?parley=1&model=m", *["/v1/realtime?parley=1&model=m&resume=1"] * 2]
    assert len(set(house.tokens_seen)) == 2
    assert not any(token in repr((told, session.config, vars(session))) for token in [*house.tokens, *house.tokens_seen])


async def test_a_resume_whose_answer_was_lost_is_tried_again_with_the_token_of_before() -> None:
    house = House([Cut("receive", 0), Cut("send", 0), Cut("send", 0)])
    async with serving(house) as url, parley.connect(url, limits=QUICK) as session, asyncio.timeout(10):
        await until_item(session, "one")
    assert len(house.tokens_seen) == 3
    assert len(set(house.tokens_seen)) == 1


@pytest.mark.parametrize("code", [1001, 1006, 1011, 1012, 1013])
async def test_these_losses_are_made_good(code: int) -> None:
    house = House()
    async with serving(house) as url, parley.connect(url, limits=QUICK) as session, asyncio.timeout(10):
        for text in ("one", "two", "three"):  # a failure with work between is not a failure in a row
            await until_item(session, text)
            await house.cut(code)
        await until_item(session, "four")
    assert house.resumes == 3


@pytest.mark.parametrize("code", [1000, 1002, 1007, 1008, 1009])
async def test_these_are_final(code: int) -> None:
    house = House()
    async with serving(house) as url, parley.connect(url, limits=QUICK) as session, asyncio.timeout(10):
        await house.cut(code)
        with pytest.raises(parley.ConnectionLost) if code != 1000 else contextlib.nullcontext() as caught:
            assert [event async for event in session] == []
        with pytest.raises(parley.ConnectionLost):
            await session.commit()
    assert caught is None or caught.value.code == code
    assert len(house.dials) == 1


async def test_a_server_that_fails_twice_in_a_row_is_left() -> None:
    house = House([Cut("received", 0, 1011), Cut("sent", 0, 1011)])
    async with serving(house) as url, parley.connect(url, limits=QUICK) as session, asyncio.timeout(10):
        await session.commit()
        with pytest.raises(parley.ResumeFailed) as caught:
            async for _ in session:
                pass
    assert (caught.value.code, caught.value.error_code) == (1011, "internal_error")
    assert len(house.dials) == 2


@pytest.mark.parametrize("code", ["invalid_resume_token", "session_resume_expired", "something_else"])
async def test_a_refused_resume_ends_the_session(code: str) -> None:
    house = House()
    house.answers.append({"type": "invalid_request_error", "code": code})
    async with serving(house) as url, parley.connect(url, limits=QUICK) as session, asyncio.timeout(10):
        await house.cut()
        with pytest.raises(parley.ResumeFailed) as caught:
            await anext(session)
        with pytest.raises(parley.ResumeFailed):
            await session.send_audio(signal(10))
    assert caught.value.error_code == code
    assert code in str(caught.value)
    assert len(house.dials) == 2


@pytest.mark.parametrize("conflicts", [1, 2])
async def test_a_conflict_is_tried_once_more(conflicts: int) -> None:
    house = House()
    house.answers.extend([{"type": "invalid_request_error", "code": "session_resume_conflict"}] * conflicts)
    async with serving(house) as url, parley.connect(url, limits=QUICK) as session, asyncio.timeout(10):
        await house.cut()
        if conflicts == 1:
            await until_item(session, "one")
        else:
            with pytest.raises(parley.ResumeFailed) as caught:
                await anext(session)
            assert caught.value.error_code == "session_resume_conflict"
    assert len(house.dials) == 3


async def test_a_server_that_fails_or_is_full_is_dialled_again_when_it_said() -> None:
    house = House()
    async with serving(house) as url, parley.connect(url, limits=QUICK) as session, asyncio.timeout(10):
        house.refusals.extend([(502, {}), (503, {"Retry-After": "0.2"}), (504, {})])
        house.answers.append({"type": "server_error", "code": "stages_unavailable"})
        begun = time.monotonic()
        await house.cut()
        await until_item(session, "one")
        assert time.monotonic() - begun >= 0.2
    assert len(house.dials) == 6


async def test_a_key_that_is_refused_now_ends_the_session() -> None:
    house = House()
    async with serving(house) as url, parley.connect(url, "secret", limits=QUICK) as session, asyncio.timeout(10):
        house.refusals.append((401, {}))
        await house.cut()
        with pytest.raises(parley.ResumeFailed) as caught:
            await anext(session)
    assert isinstance(caught.value.__cause__, parley.Unauthorized)
    assert "secret" not in str(caught.value)


async def test_the_grace_ends() -> None:
    house = House()
    async with contextlib.AsyncExitStack() as stack:
        async with serving(house) as url:
            session = await stack.enter_async_context(parley.connect(url, limits=quick(grace_s=0.3)))
            await house.cut()
        with pytest.raises(parley.ResumeFailed) as caught:
            async for _ in session:
                pass
    assert caught.value.error_code == "grace_expired"


async def test_a_server_that_takes_the_session_and_drops_it_each_time_is_not_hammered() -> None:
    house = House([Cut("received", 0), *[Cut("sent", 0, 1012)] * 1000])
    limits = quick(grace_s=1.0, backoff_first_s=0.02, backoff_max_s=0.05)
    async with serving(house) as url, parley.connect(url, limits=limits) as session, asyncio.timeout(10):
        await session.commit()
        with pytest.raises(parley.ResumeFailed) as caught:
            async for _ in session:
                pass
    assert caught.value.error_code == "grace_expired"
    assert 3 <= len(house.dials) <= 200


async def test_a_server_that_does_not_answer_is_dialled_again() -> None:
    house = House()
    async with serving(house) as url, parley.connect(url, limits=quick(resume_timeout_s=0.1)) as session, asyncio.timeout(10):
        answer, house.resume = house.resume, lambda wire: wire.socket.wait_closed()  # type: ignore[assignment,method-assign]
        house.dialled.clear()
        await house.cut()
        await house.dialled.wait()
        house.dialled.clear()
        house.resume = answer  # type: ignore[method-assign]
        await house.dialled.wait()
        await until_item(session, "one")
    assert len(house.dials) == 3


async def test_the_session_that_was_taken_over_does_not_come_back() -> None:
    house = House()
    async with serving(house) as url, parley.connect(url, limits=QUICK) as session, asyncio.timeout(10):
        await until_item(session, "one")
        async with open_websocket(realtime_url(url, {"parley": "1", "resume": "1"})) as other:
            claim = {"type": "session.resume", "session_id": "sess_1", "resume_token": house.tokens[-1], "last_seq": 0}
            await other.send(json.dumps(claim))
            assert isinstance(await anext(session), events.Replaced)
            with pytest.raises(parley.TakenOver):
                await anext(session)
            assert [json.loads(await other.recv())["type"] for _ in range(3)] == [
                "session.resumed", "session.created", "conversation.item.added"
            ]  # fmt: skip
    assert len(house.dials) == 2


async def test_lost_events_are_told_and_the_session_goes_on() -> None:
    house = House(journal_events=3)
    house.answers.append({"type": "invalid_request_error", "code": "journal_gap"})
    async with serving(house) as url, parley.connect(url, limits=QUICK) as session, asyncio.timeout(10):
        await house.cut()
        for number in range(6):
            await house.tell("rate_limits.updated", rate_limits=[], number=number)
        told = await until_item(session, "one")
    assert [type(event).__name__ for event in told] == [
        "Error", "ResyncRequired", "Resumed", "RateLimits", "RateLimits", "RateLimits", "ItemAdded"
    ]  # fmt: skip
    assert isinstance(told[1], events.ResyncRequired)
    assert (told[1].reason, told[1].first_seq) == ("journal_gap", 5)
    assert [events.number(event) for event in told[3:]] == [5, 6, 7, 8]


async def test_what_came_without_a_number_is_claimed_and_neither_told_again_nor_missing() -> None:
    house = House()
    async with serving(house) as url, parley.connect(url, limits=QUICK) as session, asyncio.timeout(10):
        for durable in (True, False, False):
            await house.tell("rate_limits.updated", durable=durable, rate_limits=[])
            await anext(session)
        await house.cut()
        await house.tell("rate_limits.updated", rate_limits=[])
        told = await until_item(session, "one")
    assert [type(event).__name__ for event in told] == ["Resumed", "RateLimits", "ItemAdded"]
    assert [events.number(event) for event in told[1:]] == [5, 6]


@pytest.mark.parametrize("place", ["5", "9", "u1"])
async def test_a_resync_stands_in_the_place_of_what_is_lost(place: str) -> None:
    """Of a journal that begins at 6, above all that the client knows (a store that rolled back), and where the store is away again."""
    following = {"5": "6", "9": "10", "u1": "10"}[place]

    async def script(peer: Peer) -> None:
        await peer.emit("session.created", session={"id": "sess_1", "resume_token": "t"})
        lost = {"type": "session.resync_required", "event_id": f"event_1_{place}", "reason": "r", "first_seq": 6 if place == "5" else 9}
        await peer.socket.send(json.dumps(lost))
        await peer.socket.send(json.dumps(lost))
        await peer.socket.send(json.dumps({"type": "input_audio_buffer.cleared", "event_id": f"event_1_{following}"}))

    async with realtime_server(script) as url, parley.connect(url) as session:
        told = [event async for event in session]
    names = [type(event).__name__ for event in told]
    assert names == ["ResyncRequired"] * (2 if place == "u1" else 1) + ["InputCleared"], "and no jump besides"


async def test_a_jump_is_told_and_what_comes_twice_is_not() -> None:
    async def script(peer: Peer) -> None:
        await peer.emit("session.created", session={"id": "sess_1", "resume_token": "t"})
        for place in ("1", "2", "2", "5", "4", "u1", "u2", "8", "u3", "11"):
            await peer.socket.send(json.dumps({"type": "input_audio_buffer.cleared", "event_id": f"event_1_{place}"}))

    async with realtime_server(script) as url, parley.connect(url) as session:
        told = [event async for event in session]
    assert [event.event_id or getattr(event, "first_seq", 0) for event in told] == [
        "event_1_2", 5, "event_1_5", "event_1_u1", "event_1_u2", "event_1_8", "event_1_u3", 11, "event_1_11"
    ]  # fmt: skip
    assert {event.reason for event in told if isinstance(event, events.ResyncRequired)} == {"sequence_jump"}


async def test_what_is_said_in_an_outage_arrives_after_it() -> None:
    house = House()
    async with serving(house) as url, parley.connect(url, limits=quick(grace_s=20)) as session, asyncio.timeout(10):
        house.refusals.extend([(503, {"Retry-After": "0.05"})] * 3)
        await house.cut()
        await house.dialled.wait()
        house.dialled.clear()
        await house.dialled.wait()
        await session.send_audio(signal(500))
        await session.commit()
        await session.send_audio(signal(500, 500))
        assert house.said == []
        await until_item(session, "one")
    commit = (1, "input_audio_buffer.commit")
    assert house.heard == [signal(500), commit, signal(500, 500), (2, "conversation.item.create")]


async def test_an_outage_that_outlasts_the_ring_is_told() -> None:
    house = House()
    async with serving(house) as url, parley.connect(url, limits=quick(audio_ring_ms=100)) as session, asyncio.timeout(10):
        house.refusals.append((503, {"Retry-After": "0.4"}))
        await house.cut()
        await house.dialled.wait()
        house.dialled.clear()
        await house.dialled.wait()
        await session.send_audio(signal(2400))
        with pytest.raises(parley.OutageTooLong) as caught:
            await session.send_audio(signal(100))
        assert caught.value.accepted_bytes == 0
        while not isinstance(await anext(session), events.Resumed):
            pass
        await session.send_audio(signal(100, 2400))
        await until_item(session, "one")
    assert house.heard[0] == signal(2500)


async def test_a_sender_that_is_faster_than_real_time_waits_for_the_end_of_a_short_outage() -> None:
    house = House()
    async with serving(house) as url, parley.connect(url, limits=quick(audio_ring_ms=1000)) as session, asyncio.timeout(10):
        house.refusals.append((503, {"Retry-After": "0.2"}))
        await house.cut()
        await house.dialled.wait()
        house.dialled.clear()
        await house.dialled.wait()
        for start in range(0, 48_000, 4800):
            await session.send_audio(signal(4800, start))
        await until_item(session, "one")
    assert house.heard[0] == signal(48_000)


async def test_what_nobody_keeps_any_more_is_told() -> None:
    house = House()
    house.lag_samples = 4800
    limits = quick(audio_ring_ms=100)
    async with serving(house) as url, parley.connect(url, limits=limits) as session, asyncio.timeout(10):
        for start in range(0, 4800, 240):
            await session.send_audio(signal(240, start))
        await house.until(lambda: house.samples == 4800)
        await house.cut()
        told = await until_item(session, "one")
        lost = [event for event in told if isinstance(event, events.InputLost)]
        assert [(event.samples, event.commands) for event in lost] == [(2400, 0)]
        house.lag_samples = 10
        await house.cut()
        await session.send_audio(signal(100, 4800))
        assert not [event for event in await until_item(session, "two") if isinstance(event, events.InputLost)]
    assert house.heard == [signal(2400, 2400), (1, "conversation.item.create"), signal(100, 4800), (2, "conversation.item.create")]


async def test_closing_while_it_is_away_ends_all() -> None:
    house = House()
    house.refusals.extend([(503, {"Retry-After": "60"})] * 9)
    async with serving(house) as url, asyncio.timeout(10):
        house.refusals, held = type(house.refusals)(), house.refusals
        async with parley.connect(url, limits=quick(grace_s=600)) as session:
            house.refusals = held
            house.dialled.clear()
            await house.cut()
            await house.dialled.wait()
        assert [event async for event in session] == []
        with pytest.raises(parley.SessionClosed):
            await session.commit()
        assert [task for task in asyncio.all_tasks() if task.get_name().startswith("parley")] == []
    assert len(house.dials) == 2


async def test_without_resume_nothing_of_it_is_on_the_wire() -> None:
    received: list[dict[str, object]] = []

    async def script(peer: Peer) -> None:
        await peer.emit("session.created", session={"id": "sess_1", "resume_token": "t"})
        received.append({"path": peer.request.path})
        received.append(await peer.next())
        peer.socket.transport.abort()

    async with realtime_server(script) as url, parley.connect(url, resume=False) as session, asyncio.timeout(10):
        assert not session.resumable
        await session.commit()
        with pytest.raises(parley.ConnectionLost) as caught:
            await anext(session)
    assert type(caught.value) is parley.ConnectionLost
    assert received == [{"path": "/v1/realtime"}, {"type": "input_audio_buffer.commit", "event_id": "client_1"}]


async def test_the_server_is_told_what_was_taken() -> None:
    house = House()
    async with serving(house) as url, parley.connect(url, limits=quick(ack_interval_s=0.1, ack_events=8)) as session, asyncio.timeout(10):
        for number in range(20):
            await house.tell("rate_limits.updated", rate_limits=[], number=number)
        for _ in range(3):
            await anext(session)
        await house.until(lambda: bool(house.acks))
        assert house.acks == [4]
        for _ in range(12):
            await anext(session)
        await house.until(lambda: house.acks[-1] == 16)
    assert len(house.acks) <= 3


async def test_a_reader_that_lags_costs_bounded_memory_and_hides_no_loss() -> None:
    house = House()
    limits = quick(inbox_bytes=200_000)
    async with serving(house) as url, parley.connect(url, limits=limits) as session, asyncio.timeout(20):
        for number in range(200):
            await house.tell("parley.bulk", number=number, data="x" * 100_000)
        for _ in range(3000):
            await asyncio.sleep(0)
        assert session._link.inbox.full
        house.dialled.clear()
        await house.cut()
        while not house.dialled.is_set():  # nobody reads: it is the writer who finds out
            await session.send_audio(signal(1))
            await asyncio.sleep(0.01)
        frames_in_socket = 17  # what websockets had received already
        assert sum(entry.size for entry in session._link.inbox.main.entries) < limits.inbox_bytes + (frames_in_socket + 1) * 100_100
        told = await until_item(session, "end")
    assert [events.number(event) for event in told if not isinstance(event, events.Resumed)] == list(range(2, 203))
