"""The client's session against a real WebSocket server."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from websockets.http11 import Request

import parley
from parley import events
from parley.client.connection import realtime_url
from parley.client.limits import Limits
from parley.client.session import MAX_APPEND_BYTES

from .realtime import SESSION, Peer, realtime_server, speak_reply


async def test_a_session_starts_with_what_the_server_granted() -> None:
    seen: list[Request] = []

    async def script(peer: Peer) -> None:
        seen.append(peer.request)
        await peer.welcome()
        await peer.socket.wait_closed()

    async with realtime_server(script) as url, parley.connect(url, "key-1", "model-1") as session:
        assert session.id == "sess_1"
        assert session.config == SESSION
    assert seen[0].path == "/v1/realtime?parley=1&model=model-1"
    assert seen[0].headers["Authorization"] == "Bearer key-1"
    assert "Sec-WebSocket-Extensions" not in seen[0].headers


async def test_every_command_is_the_ga_event_under_an_id_of_its_own() -> None:
    async def script(peer: Peer) -> None:
        await peer.welcome()
        received.extend([await peer.next() for _ in range(12)])

    received: list[dict[str, Any]] = []
    async with realtime_server(script) as url, parley.connect(url) as session:
        ids = [
            await session.update(turn_detection=None, voice="joe", instructions="be brief"),
            await session.update(audio={"input": {"noise_reduction": None}}, transcription={"model": "m"}),
            await session.commit(),
            await session.clear_input(),
            await session.respond(),
            await session.respond(metadata={"a": "b"}),
            await session.cancel(),
            await session.cancel("resp_1"),
            await session.create_item("hello", previous_item_id="root"),
            await session.retrieve_item("i"),
            await session.delete_item("i"),
            await session.truncate_item("i", 120),
        ]
        assert [event async for event in session] == []
    assert [event.pop("event_id") for event in received] == ids == [f"client_{number}" for number in range(1, 13)]
    first = {"type": "realtime", "instructions": "be brief", "audio": {"input": {"turn_detection": None}, "output": {"voice": "joe"}}}
    second = {"type": "realtime", "audio": {"input": {"noise_reduction": None, "transcription": {"model": "m"}}}}
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
    assert received == [
        {"type": "session.update", "session": first},
        {"type": "session.update", "session": second},
        {"type": "input_audio_buffer.commit"},
        {"type": "input_audio_buffer.clear"},
        {"type": "response.create"},
        {"type": "response.create", "response": {"metadata": {"a": "b"}}},
        {"type": "response.cancel"},
        {"type": "response.cancel", "response_id": "resp_1"},
        {"type": "conversation.item.create", "item": item, "previous_item_id": "root"},
        {"type": "conversation.item.retrieve", "item_id": "i"},
        {"type": "conversation.item.delete", "item_id": "i"},
        {"type": "conversation.item.truncate", "item_id": "i", "content_index": 0, "audio_end_ms": 120},
    ]


async def test_audio_arrives_whole_however_long_it_is() -> None:
    sent = bytes(range(256)) * (MAX_APPEND_BYTES // 256) + b"\x01\x02\x03\x04"

    async def script(peer: Peer) -> None:
        await peer.welcome()
        for _ in range(2):
            event = await peer.next()
            assert event["type"] == "input_audio_buffer.append"
            pieces.append(base64.b64decode(event["audio"], validate=True))

    pieces: list[bytes] = []
    async with realtime_server(script) as url, parley.connect(url) as session:
        await session.send_audio(sent)
        assert [event async for event in session] == []
    assert b"".join(pieces) == sent


async def test_a_spoken_answer_comes_as_typed_events_in_order() -> None:
    pcm = bytes(range(250)) * 48

    async def script(peer: Peer) -> None:
        await peer.welcome()
        await speak_reply(peer, "hello", ["Good ", "day."], pcm)
        await peer.socket.wait_closed()

    audio, said, done = b"", "", None
    async with realtime_server(script) as url, parley.connect(url) as session:
        async for event in session:
            match event:
                case events.TranscriptionCompleted(transcript=transcript):
                    assert transcript == "hello"
                case events.AudioDelta(audio=piece):
                    audio += piece
                case events.TranscriptDelta(delta=delta):
                    said += delta
                case events.ResponseDone(response=done):
                    break
    assert (audio, said) == (pcm, "Good day.")
    assert done is not None and done.status == "completed"
    assert done.output[0].text == "Good day."
    assert done.usage == {"total_tokens": 3}


async def test_an_error_event_is_an_event_and_the_conversation_goes_on() -> None:
    async def script(peer: Peer) -> None:
        await peer.welcome()
        culprit = (await peer.next())["event_id"]
        await peer.emit("error", error={"type": "invalid_request_error", "code": "c", "message": "m", "param": None, "event_id": culprit})
        await peer.emit("session.updated", session={**SESSION, "instructions": "new"})

    async with realtime_server(script) as url, parley.connect(url) as session:
        culprit = await session.cancel()
        error, updated = [event async for event in session]
        assert isinstance(error, events.Error)
        assert (error.error.code, error.error.event_id) == ("c", culprit)
        assert isinstance(updated, events.SessionUpdated)
        assert session.config["instructions"] == "new"


async def test_an_event_of_an_unknown_type_arrives_whole() -> None:
    async def script(peer: Peer) -> None:
        await peer.welcome()
        await peer.emit("parley.extension", value=[1, 2])

    async with realtime_server(script) as url, parley.connect(url) as session:
        [event] = [event async for event in session]
    assert isinstance(event, events.Unknown)
    assert (event.type, event.event_id, event.data["value"]) == ("parley.extension", "event_2", [1, 2])


@pytest.mark.parametrize("frame", ["no json", "[]", "{}", '{"type": "response.done", "event_id": "e"}', b"\xff\xfe"])
async def test_what_is_no_event_is_a_protocol_error(frame: str | bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.welcome()
        await peer.socket.send(frame)
        await peer.socket.wait_closed()

    async with realtime_server(script) as url, parley.connect(url) as session:
        with pytest.raises(parley.ProtocolError):
            await anext(session)


async def test_a_lost_connection_is_told_with_its_code() -> None:
    async def script(peer: Peer) -> None:
        await peer.welcome()
        await peer.socket.close(1012, "server_draining")

    async with realtime_server(script) as url, parley.connect(url) as session:
        with pytest.raises(parley.ConnectionLost) as caught:
            await anext(session)
        with pytest.raises(parley.ConnectionLost):
            await session.commit()
    assert (caught.value.code, caught.value.reason) == (1012, "server_draining")


async def test_a_cut_connection_is_lost_with_1006() -> None:
    async def script(peer: Peer) -> None:
        await peer.welcome()
        peer.socket.transport.abort()

    async with realtime_server(script) as url, parley.connect(url) as session:
        with pytest.raises(parley.ConnectionLost) as caught:
            await anext(session)
    assert caught.value.code == 1006


async def test_closing_ends_the_iteration_and_all_further_use() -> None:
    async def script(peer: Peer) -> None:
        await peer.welcome()
        await peer.socket.wait_closed()

    async with realtime_server(script) as url, parley.connect(url) as session:
        waiting = asyncio.ensure_future(anext(session, None))
        await asyncio.sleep(0)
        await session.close()
        assert await waiting is None
        with pytest.raises(parley.SessionClosed):
            await session.commit()
        await session.close()


@pytest.mark.parametrize(
    ("status", "body", "kind", "code"),
    [
        (401, b'{"error": {"message": "bad key", "code": "invalid_api_key"}}', parley.Unauthorized, "invalid_api_key"),
        (403, b"", parley.Unauthorized, ""),
        (404, b"not json", parley.UnknownModel, ""),
        (400, b'{"error": {"message": "no", "code": "unsupported_mode"}}', parley.UnknownModel, "unsupported_mode"),
        (503, b'{"error": {"message": "full", "code": "at_capacity"}}', parley.AtCapacity, "at_capacity"),
        (429, b"\xff", parley.AtCapacity, ""),
        (500, b"{}", parley.Refused, ""),
    ],
)
async def test_a_refused_upgrade_is_typed(status: int, body: bytes, kind: type[parley.Refused], code: str) -> None:
    async with realtime_server(Peer.welcome, lambda request: (status, {"Retry-After": "7"}, body)) as url:
        with pytest.raises(parley.Refused) as caught:
            async with parley.connect(url, "secret-key"):
                pass
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.code, caught.value.retry_after_s) == (status, code, 7.0)
    assert "secret-key" not in str(caught.value)


async def test_a_full_server_is_dialled_again_when_it_said() -> None:
    asked = 0

    def full_twice(request: Request) -> tuple[int, dict[str, str], bytes] | None:
        nonlocal asked
        asked += 1
        return (503, {"Retry-After": "0.05"}, b"") if asked < 3 else None

    async def script(peer: Peer) -> None:
        await peer.welcome()
        await peer.socket.wait_closed()

    async with realtime_server(script, full_twice) as url, parley.connect(url, limits=Limits(patience_s=5)) as session:
        assert session.id == "sess_1"
    assert asked == 3


async def test_a_wait_that_is_longer_than_the_patience_is_not_begun() -> None:
    async with realtime_server(Peer.welcome, lambda request: (503, {"Retry-After": "60"}, b"")) as url, asyncio.timeout(30):
        with pytest.raises(parley.AtCapacity):
            async with parley.connect(url, limits=Limits(patience_s=2)):
                pass


async def test_nobody_there_is_unreachable(unused_tcp_port: int) -> None:
    with pytest.raises(parley.Unreachable):
        async with parley.connect(f"127.0.0.1:{unused_tcp_port}"):
            pass


async def test_a_server_that_says_nothing_is_unreachable() -> None:
    async def silent(peer: Peer) -> None:
        await peer.socket.wait_closed()

    async with realtime_server(silent) as url:
        with pytest.raises(parley.Unreachable, match=r"sent nothing within 0\.2 s"):
            async with parley.connect(url, limits=Limits(open_timeout_s=0.2)):
                pass


async def test_an_error_as_the_first_event_is_a_refusal() -> None:
    async def script(peer: Peer) -> None:
        await peer.emit("error", error={"type": "server_error", "code": "stages_unavailable", "message": "no"})

    async with realtime_server(script) as url:
        with pytest.raises(parley.Refused) as caught:
            async with parley.connect(url):
                pass
    assert caught.value.code == "stages_unavailable"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://h:1", "ws://h:1/v1/realtime?model=m"),
        ("https://h/", "wss://h/v1/realtime?model=m"),
        ("h:1", "ws://h:1/v1/realtime?model=m"),
        ("ws://h/v1", "ws://h/v1/realtime?model=m"),
        ("wss://h/v1/realtime?a=b&model=x", "wss://h/v1/realtime?a=b&model=m"),
        ("http://h/prefix/", "ws://h/prefix/v1/realtime?model=m"),
    ],
)
def test_addresses(url: str, address: str) -> None:
    assert realtime_url(url, {"model": "m"}) == address


@pytest.mark.parametrize("url", ["ftp://h", "http://", "redis://h", "http://h:99999", "http://h:x", "http://[::1"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(parley.Unreachable):
        realtime_url(url, {})
