"""A small real WebSocket server that speaks Realtime as a test tells it to."""

from __future__ import annotations

import base64
import contextlib
import json
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

REPLY = struct.pack("<6000h", *(6000 if at % 40 < 20 else -6000 for at in range(6000)))  # 250 ms
SESSION = {"id": "sess_1", "type": "realtime", "audio": {"input": {"format": {"type": "audio/pcm", "rate": 24000}}}}


class Peer:
    """The server's side of one conversation."""

    def __init__(self, socket: ServerConnection) -> None:
        self.socket = socket
        assert socket.request is not None
        self.request: Request = socket.request
        self._sent = 0

    async def emit(self, type: str, **fields: Any) -> None:
        """Sends one event with a new event id."""
        self._sent += 1
        await self.socket.send(json.dumps({"type": type, "event_id": f"event_{self._sent}", **fields}))

    async def welcome(self) -> None:
        await self.emit("session.created", session=SESSION)

    async def next(self) -> dict[str, Any]:
        """The client's next event."""
        event: dict[str, Any] = json.loads(await self.socket.recv())
        return event

    async def read_on(self) -> None:
        """Takes what comes and says nothing, until the client leaves."""
        async for _ in self.socket:
            pass


Script = Callable[[Peer], Awaitable[None]]
Refuse = Callable[[Request], tuple[int, dict[str, str], bytes] | None]


@contextlib.asynccontextmanager
async def realtime_server(script: Script, refuse: Refuse | None = None) -> AsyncIterator[str]:
    """Serves script on a free port; yields the address. refuse may answer an upgrade with (status, headers, body)."""

    async def handle(socket: ServerConnection) -> None:
        await script(Peer(socket))

    def judge(connection: ServerConnection, request: Request) -> Response | None:
        if (no := refuse(request) if refuse else None) is None:
            return None
        status, headers, body = no
        response = connection.respond(HTTPStatus(status), "")
        response.body = body
        del response.headers["Content-Length"]
        response.headers["Content-Length"] = str(len(body))
        for name, value in headers.items():
            response.headers[name] = value
        return response

    async with serve(handle, "127.0.0.1", 0, process_request=judge, compression=None, max_size=32 * 1024 * 1024) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def speak_reply(peer: Peer, heard: str, answer: list[str], pcm: bytes) -> None:
    """One spoken answer as a GA server sends it; pcm is cut into pieces of 100 ms."""
    item = {
        "id": "item_u",
        "type": "message",
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_audio", "transcript": None}],
    }
    await peer.emit("input_audio_buffer.committed", item_id="item_u", previous_item_id=None)
    await peer.emit("conversation.item.added", item=item, previous_item_id=None)
    await peer.emit("conversation.item.done", item=item, previous_item_id=None)
    await peer.emit("conversation.item.input_audio_transcription.completed", item_id="item_u", content_index=0, transcript=heard, usage={})
    response = {"id": "resp_1", "object": "realtime.response", "status": "in_progress", "status_details": None, "output": [], "usage": None}
    await peer.emit("response.created", response=response)
    where = {"response_id": "resp_1", "item_id": "item_a", "output_index": 0, "content_index": 0}
    for piece in answer:
        await peer.emit("response.output_audio_transcript.delta", **where, delta=piece)
    for at in range(0, len(pcm), 4800):
        await peer.emit("response.output_audio.delta", **where, delta=base64.b64encode(pcm[at : at + 4800]).decode())
    await peer.emit("response.output_audio.done", **where)
    await peer.emit("response.output_audio_transcript.done", **where, transcript="".join(answer))
    spoken = {"id": "item_a", "type": "message", "role": "assistant", "status": "completed"}
    spoken["content"] = [{"type": "output_audio", "transcript": "".join(answer)}]  # type: ignore[assignment]
    await peer.emit("response.done", response={**response, "status": "completed", "output": [spoken], "usage": {"total_tokens": 3}})


class Ears:
    """A server that waits for silence after the voice, as a turn detector does, and then answers."""

    def __init__(self, answer: list[str], reply: bytes) -> None:
        self._answer, self._reply = answer, reply
        self.heard = b""
        self.update: dict[str, Any] = {}
        self.arrivals: list[float] = []
        self.others: list[str] = []

    async def __call__(self, peer: Peer) -> None:
        await peer.welcome()
        self.update = (await peer.next())["session"]
        await peer.emit("session.updated", session=SESSION)
        manual = self.update["audio"]["input"]["turn_detection"] is None
        await (self._until_commit(peer) if manual else self._until_silence(peer))
        await speak_reply(peer, "What is it?", self._answer, self._reply)
        await peer.read_on()

    async def deaf(self, peer: Peer) -> None:
        """Never answers."""
        await peer.welcome()
        await peer.next()
        await peer.emit("session.updated", session=SESSION)
        await peer.read_on()

    async def _take(self, peer: Peer) -> bytes | None:
        event = await peer.next()
        if event["type"] != "input_audio_buffer.append":
            self.others.append(event["type"])
            return None
        self.arrivals.append(time.monotonic())
        audio = base64.b64decode(event["audio"])
        self.heard += audio
        return audio

    async def _until_silence(self, peer: Peer) -> None:
        await self._take(peer)
        await peer.emit("input_audio_buffer.speech_started", item_id="item_u", audio_start_ms=0)
        kind = "conversation.item.input_audio_transcription.delta"
        await peer.emit(kind, item_id="item_u", content_index=0, delta="What ")
        silent = 0
        while silent < 3:
            audio = await self._take(peer)
            silent = silent + 1 if audio is not None and not any(audio) else 0
        await peer.emit("input_audio_buffer.speech_stopped", item_id="item_u", audio_end_ms=280)

    async def _until_commit(self, peer: Peer) -> None:
        while self.others != ["input_audio_buffer.commit", "response.create"]:
            await self._take(peer)
