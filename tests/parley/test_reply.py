"""The handle of one response: its deltas, its text, its end, and what the session sees meanwhile."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

import parley
from parley import Limits, events

from .lasting import Cut, House, serving, signal
from .realtime import Peer, realtime_server

QUICK = Limits(backoff_first_s=0.002, backoff_max_s=0.02)


class Script:
    """Says a response piece by piece, as a test wants."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    async def created(self, name: str, metadata: dict[str, str] | None = None) -> None:
        response = {"id": name, "status": "in_progress", "output": [], "metadata": metadata}
        await self.peer.emit("response.created", response=response)

    async def text(self, name: str, delta: str) -> None:
        await self.peer.emit("response.output_text.delta", response_id=name, item_id="i", delta=delta)

    async def done(self, name: str, status: str = "completed") -> None:
        await self.peer.emit("response.done", response={"id": name, "status": status, "output": [], "usage": {"total_tokens": 1}})


async def received(session: parley.Session, events_: int) -> None:
    """Returns once so many events wait for the session."""
    for _ in range(10_000):
        if len(session._link.inbox.main.entries) >= events_:
            return
        await asyncio.sleep(0)


async def test_a_reply_is_whole_and_its_events_are_its_own() -> None:
    house = House()
    house.reply_samples = 1000
    async with serving(house) as url, parley.connect(url) as session, asyncio.timeout(10):
        audio, seen = b"", []
        async with session.respond(metadata={"mine": "1"}) as reply:
            assert (reply.id, reply.status, reply.done, reply.text) == ("resp_1", "in_progress", False, "")
            assert reply.response.metadata is not None
            assert reply.response.metadata["mine"] == "1"
            async for delta in reply:
                seen.append(type(delta))
                if isinstance(delta, events.AudioDelta):
                    audio += delta.audio
        assert (reply.status, reply.done, reply.text) == ("completed", True, "0 240 480 720 960 ")
        assert audio == signal(1000)
        assert seen == [events.TranscriptDelta, events.AudioDelta] * 5
        assert await reply.wait() is reply.response
        await session.create_item("next")
        assert isinstance(await anext(session), events.ItemAdded)


@pytest.mark.parametrize("at", range(12))
async def test_a_reply_is_whole_across_a_loss(at: int) -> None:
    house = House([Cut("sent", at), Cut("send", at)])
    house.first_cut_after = 1 if at == 0 else 0
    house.reply_samples = 1000
    async with serving(house) as url, parley.connect(url, limits=QUICK) as session, asyncio.timeout(10):
        async with session.respond() as reply:
            audio = b"".join([delta.audio async for delta in reply if isinstance(delta, events.AudioDelta)])
        assert (audio, reply.status) == (signal(1000), "completed")


async def test_awaiting_only_asks() -> None:
    house = House()
    async with serving(house) as url, parley.connect(url) as session, asyncio.timeout(10):
        assert await session.respond() == "client_1"
        created = await anext(session)
        assert isinstance(created, events.ResponseCreated)
        assert created.response.metadata is None
        assert isinstance(await anext(session), events.ResponseDone)


async def test_a_refused_request_is_told_where_it_was_made() -> None:
    async def script(peer: Peer) -> None:
        await peer.welcome()
        asked = await peer.next()
        await peer.emit("error", error={"type": "t", "code": "other", "message": "other", "event_id": "client_99"})
        error = {"type": "t", "code": "conversation_already_has_active_response", "message": "m", "event_id": asked["event_id"]}
        await peer.emit("error", error=error)
        await peer.read_on()

    async with realtime_server(script) as url, parley.connect(url) as session, asyncio.timeout(10):
        with pytest.raises(parley.RequestFailed) as caught:
            async with session.respond():
                pass
        assert caught.value.code == "conversation_already_has_active_response"
        other = await anext(session)
        assert isinstance(other, events.Error)
        assert other.error.code == "other"


async def test_a_response_that_the_server_began_has_a_handle_too() -> None:
    async def script(peer: Peer) -> None:
        await peer.welcome()
        says = Script(peer)
        await says.created("r1")
        await says.text("r1", "one ")
        await peer.emit("input_audio_buffer.speech_started", item_id="i", audio_start_ms=5)
        await says.text("r1", "two")
        cancel = await peer.next()
        cancelled.append(cancel)
        await says.done("r1", "cancelled")
        await peer.emit("input_audio_buffer.cleared")
        await peer.read_on()

    cancelled: list[dict[str, Any]] = []
    async with realtime_server(script) as url, parley.connect(url) as session, asyncio.timeout(10):
        created = await anext(session)
        assert isinstance(created, events.ResponseCreated)
        await received(session, 3)
        async with session.reply(created.response) as reply:
            assert isinstance(await anext(reply), events.TextDelta)
            await reply.cancel()
            response = await reply.wait()
        assert (response.status, reply.text) == ("cancelled", "one two")
        assert [type(await anext(session)) for _ in range(2)] == [events.SpeechStarted, events.InputCleared]
    assert (cancelled[0]["type"], cancelled[0]["response_id"]) == ("response.cancel", "r1")


async def test_what_is_left_of_a_reply_goes_to_the_session_in_order() -> None:
    async def script(peer: Peer) -> None:
        await peer.welcome()
        says = Script(peer)
        metadata = (await peer.next())["response"]["metadata"]
        await says.created("r1", metadata)
        await says.text("r1", "one")
        await peer.emit("input_audio_buffer.cleared")
        await says.text("r1", "two")
        await peer.next()
        await says.text("r1", "three")
        await says.done("r1")
        await peer.read_on()

    async with realtime_server(script) as url, parley.connect(url) as session, asyncio.timeout(10):
        async with session.respond() as reply:
            assert (await anext(reply)).delta == "one"  # type: ignore[union-attr]
            await received(session, 1)
        await session.commit()
        kinds = [type(await anext(session)) for _ in range(4)]
    assert kinds == [events.InputCleared, events.TextDelta, events.TextDelta, events.ResponseDone]


async def test_a_reply_with_a_hole_says_so() -> None:
    async def script(peer: Peer) -> None:
        await peer.emit("session.created", session={"id": "s", "resume_token": "t"})
        metadata = (await peer.next())["response"]["metadata"]
        says = Script(peer)
        await says.created("r1", metadata)
        await says.text("r1", "one")
        peer._sent += 3
        await says.text("r1", "five")
        await says.done("r1")
        await peer.read_on()

    async with realtime_server(script) as url, parley.connect(url) as session, asyncio.timeout(10):
        with pytest.raises(parley.EventsLost):
            async with session.respond() as reply:
                async for _ in reply:
                    pass
        assert (reply.text, reply.done) == ("one", False)
        assert [type(await anext(session)) for _ in range(3)] == [events.ResyncRequired, events.TextDelta, events.ResponseDone]


async def test_a_request_whose_answer_is_lost_does_not_wait_for_ever() -> None:
    async def script(peer: Peer) -> None:
        await peer.emit("session.created", session={"id": "s", "resume_token": "t"})
        await peer.next()
        await peer.socket.send(
            json.dumps({"type": "session.resync_required", "reason": "journal_gap", "first_seq": 9, "event_id": "e_s_u1"})
        )
        await peer.read_on()

    async with realtime_server(script) as url, parley.connect(url) as session, asyncio.timeout(10):
        with pytest.raises(parley.EventsLost):
            async with session.respond():
                pass
        assert isinstance(await anext(session), events.ResyncRequired)


async def test_who_reads_only_the_reply_is_not_held_up_by_the_rest() -> None:
    async def script(peer: Peer) -> None:
        await peer.welcome()
        metadata = (await peer.next())["response"]["metadata"]
        says = Script(peer)
        for number in range(50):
            await peer.emit("parley.bulk", number=number, data="x" * 1000)
        await says.created("r1", metadata)
        for number in range(50):
            await peer.emit("parley.bulk", number=50 + number, data="x" * 1000)
        await says.text("r1", "whole")
        await says.done("r1")
        await peer.read_on()

    async with realtime_server(script) as url, parley.connect(url, limits=Limits(inbox_bytes=20_000)) as session, asyncio.timeout(10):
        async with session.respond() as reply:
            await reply.wait()
        assert reply.text == "whole"
        skipped = await anext(session)
        assert isinstance(skipped, events.Unread)
        left = [await anext(session) for _ in range(100 - skipped.count)]
        assert [event.data["number"] for event in left if isinstance(event, events.Unknown)] == list(range(skipped.count, 100))
        assert 75 <= skipped.count <= 90


async def test_the_end_of_the_session_ends_its_replies() -> None:
    async def script(peer: Peer) -> None:
        await peer.welcome()
        metadata = (await peer.next())["response"]["metadata"]
        says = Script(peer)
        await says.created("r1", metadata)
        pcm = base64.b64encode(b"\1\2").decode()
        await peer.emit("response.output_audio.delta", response_id="r1", item_id="i", delta=pcm)
        await peer.next()
        peer.socket.transport.abort()

    async with realtime_server(script) as url, parley.connect(url) as session, asyncio.timeout(10), session.respond() as reply:
        assert isinstance(await anext(reply), events.AudioDelta)
        await session.commit()
        with pytest.raises(parley.ConnectionLost):
            await anext(reply)
