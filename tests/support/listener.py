"""A raw Realtime client that records every event with its time and can wait for what it has not seen yet."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

Event = dict[str, Any]
WAIT_S = 40.0


class Heard(msgspec.Struct, frozen=True):
    """One server event, and the monotonic second at which it was read."""

    event: Event
    at: float

    @property
    def type(self) -> str:
        name: str = self.event["type"]
        return name


class Listener:
    """`heard` is everything so far; `until` consumes it in order."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.heard: list[Heard] = []
        self._at = 0
        self._news = asyncio.Event()
        self._ids = itertools.count(1)
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for text in self.socket:
                self.heard.append(Heard(json.loads(text), time.monotonic()))
                self._news.set()
        finally:
            self._news.set()

    @property
    def events(self) -> list[Event]:
        return [each.event for each in self.heard]

    def of(self, *types: str) -> list[Event]:
        return [each.event for each in self.heard if each.type in types]

    async def send(self, type: str, **fields: Any) -> str:
        """Sends one event; returns its event_id."""
        event_id: str = fields.pop("event_id", f"client_{next(self._ids)}")
        await self.socket.send(json.dumps({"type": type, "event_id": event_id, **fields}))
        return event_id

    async def until(self, wanted: str | Callable[[Event], bool], timeout_s: float = WAIT_S) -> Event:
        """The next event of that type, or for which it is true, after the one returned last. Raises AssertionError, with what came."""
        test = wanted if callable(wanted) else lambda event: event["type"] == wanted
        deadline = time.monotonic() + timeout_s
        start = self._at
        while True:
            while self._at < len(self.heard):
                event = self.heard[self._at].event
                self._at += 1
                if test(event):
                    return event
            left = deadline - time.monotonic()
            if left <= 0 or self._reading.done():
                came = [each.type for each in self.heard[start:]][-30:]
                raise AssertionError(f"no {wanted} came ({self.closed or 'open'}); since the last wait: {came}")
            self._news.clear()
            try:
                async with asyncio.timeout(left):
                    await self._news.wait()
            except TimeoutError:
                continue

    async def until_closed(self, timeout_s: float = WAIT_S) -> tuple[int, str]:
        """(close code, reason); all that came before is in `heard`."""
        async with asyncio.timeout(timeout_s):
            await asyncio.wait([self._reading])
        assert self.closed is not None
        return self.closed

    @property
    def closed(self) -> tuple[int, str] | None:
        if not self._reading.done():
            return None
        received = self.socket.protocol.close_rcvd
        return (received.code, received.reason) if received else (1006, "")

    # shorthands

    async def error(self, event_id: str) -> Event:
        """The error that answers this client event."""
        event = await self.until(lambda e: e["type"] == "error" and e["error"]["event_id"] == event_id)
        error: Event = event["error"]
        return error

    async def configure(self, **session: Any) -> Event:
        """session.update; returns the session as it is then."""
        await self.send("session.update", session={"type": "realtime", **session})
        updated = await self.until("session.updated")
        session_now: Event = updated["session"]
        return session_now

    async def append(self, pcm: bytes, piece_bytes: int = 48_000) -> None:
        """Audio as fast as the socket takes it."""
        for start in range(0, len(pcm), piece_bytes):
            await self.send("input_audio_buffer.append", audio=base64.b64encode(pcm[start : start + piece_bytes]).decode())

    async def type_in(self, text: str, **fields: Any) -> Event:
        """A typed user message; returns its item when it is done."""
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]} | fields
        await self.send("conversation.item.create", item=item)
        done = await self.until("conversation.item.done")
        made: Event = done["item"]
        return made

    async def ask(self, text: str, **response: Any) -> Event:
        """A typed message and a response to it, up to response.created: that response."""
        await self.type_in(text)
        await self.send("response.create", **({"response": response} if response else {}))
        created = await self.until("response.created")
        made: Event = created["response"]
        return made

    async def reply(self, text: str = "words=1", **response: Any) -> Event:
        """A whole typed turn: the response as its response.done tells it."""
        made = await self.ask(text, **response)
        return await self.response_done(made["id"])

    async def response_done(self, response_id: str) -> Event:
        done = await self.until(lambda e: e["type"] == "response.done" and e["response"]["id"] == response_id)
        response: Event = done["response"]
        return response

    async def item(self, item_id: str) -> Event:
        """The item as the server has it."""
        await self.send("conversation.item.retrieve", item_id=item_id)
        retrieved = await self.until("conversation.item.retrieved")
        found: Event = retrieved["item"]
        return found

    def audio(self, response_id: str) -> bytes:
        return sound(e for e in self.events if e["type"] == "response.output_audio.delta" and e["response_id"] == response_id)

    def transcript(self, response_id: str) -> str:
        return "".join(e["delta"] for e in self.of("response.output_audio_transcript.delta") if e["response_id"] == response_id)


def sound(deltas: Iterable[Event]) -> bytes:
    return b"".join(base64.b64decode(each["delta"]) for each in deltas)


@asynccontextmanager
async def listen(url: str, **options: Any) -> AsyncIterator[Listener]:
    """A conversation that has been welcomed. Options go to websockets' connect."""
    async with connect(url, max_size=None, compression=None, **options) as socket:
        listener = Listener(socket)
        try:
            await listener.until("session.created")
            yield listener
        finally:
            listener._reading.cancel()
            await asyncio.gather(listener._reading, return_exceptions=True)


__all__ = ["ConnectionClosed", "Event", "Heard", "Listener", "listen", "sound"]
