"""The unmodified openai client with a microphone that never stops: what it sends in real time, and all that it heard, with times."""

from __future__ import annotations

import asyncio
import base64
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection

from tests.embedded.house import EmbeddedHouse
from tests.embedded.recordings import RATE

Event = Any
WAIT_S = 45.0
PACKET_MS = 40
PACKET_BYTES = 2 * RATE * PACKET_MS // 1000


class Microphone:
    """Sends a packet of 40 ms every 40 ms: what is to be said, else silence. Positions are milliseconds since it was opened."""

    def __init__(self, connection: AsyncRealtimeConnection) -> None:
        self._connection = connection
        self._waiting = bytearray()
        self._sent = 0
        self._begun = time.monotonic()
        self._task = asyncio.create_task(self._run())

    @property
    def now_ms(self) -> int:
        """Position of the next packet."""
        return self._sent * PACKET_MS

    def at(self, position_ms: float) -> float:
        """Monotonic second at which the sound of that position was complete."""
        return self._begun + position_ms / 1000

    def say(self, pcm: bytes) -> int:
        """Speaks from the next packet on, after what still waits; returns the position where it starts."""
        start_ms = self.now_ms + len(self._waiting) * 1000 // (2 * RATE)
        self._waiting += pcm + bytes(-len(pcm) % PACKET_BYTES)
        return start_ms

    async def _run(self) -> None:
        while True:
            # a packet leaves when it is full; the schedule is absolute, so that lateness never adds up
            await asyncio.sleep(max(self.at(self.now_ms + PACKET_MS) - time.monotonic(), 0))
            packet = bytes(self._waiting[:PACKET_BYTES]) or bytes(PACKET_BYTES)
            del self._waiting[:PACKET_BYTES]
            self._sent += 1
            await self._connection.input_audio_buffer.append(audio=base64.b64encode(packet).decode())

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class Caller:
    """One conversation. `events` and `times` are all that came, and when; `until` consumes it in order."""

    def __init__(self, connection: AsyncRealtimeConnection) -> None:
        self.connection = connection
        self.events: list[Event] = []
        self.times: list[float] = []
        self._at = 0
        self._news = asyncio.Event()
        self._reading = asyncio.create_task(self._read())
        self._microphone: Microphone | None = None

    async def _read(self) -> None:
        try:
            async for event in self.connection:
                self.events.append(event)
                self.times.append(time.monotonic())
                self._news.set()
        finally:
            self._news.set()

    async def until(self, wanted: str | Callable[[Event], bool], timeout_s: float = WAIT_S) -> Event:
        """The next event of that type or for which it is true, after the one returned last. Raises AssertionError with what came."""
        test = wanted if callable(wanted) else lambda event: event.type == wanted
        start, deadline = self._at, time.monotonic() + timeout_s
        while True:
            while self._at < len(self.events):
                self._at += 1
                if test(event := self.events[self._at - 1]):
                    return event
            left = deadline - time.monotonic()
            if left <= 0 or self._reading.done():
                raise AssertionError(f"no {wanted} came; since the last wait: {[e.type for e in self.events[start:]][-30:]}")
            self._news.clear()
            try:
                async with asyncio.timeout(left):
                    await self._news.wait()
            except TimeoutError:
                continue

    @property
    def microphone(self) -> Microphone:
        assert self._microphone is not None, "this conversation has no microphone"
        return self._microphone

    def open_microphone(self) -> None:
        self._microphone = Microphone(self.connection)

    async def close(self) -> None:
        if self._microphone is not None:
            await self._microphone.close()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def configure(self, **session: Any) -> Event:
        await self.connection.session.update(session={"type": "realtime", **session})  # type: ignore[arg-type]
        return (await self.until("session.updated")).session

    async def item(self, item_id: str) -> Event:
        """The item as the server has it."""
        await self.connection.conversation.item.retrieve(item_id=item_id)
        return (await self.until("conversation.item.retrieved")).item

    async def done(self, response_id: str) -> Event:
        return (await self.until(lambda event: event.type == "response.done" and event.response.id == response_id)).response

    # what came

    def of(self, *types: str) -> list[Event]:
        return [event for event in self.events if event.type in types]

    def when(self, event: Event) -> float:
        """Monotonic second at which it was read."""
        return self.times[next(at for at, each in enumerate(self.events) if each is event)]

    def story(self) -> list[str]:
        """Types of all events with their seconds, runs of one type as one: for messages."""
        begun, all_ = self.times[0], zip(self.events, self.times, strict=True)
        return [f"{next(run)[1] - begun:.2f} {name}" for name, run in itertools.groupby(all_, lambda each: each[0].type)]

    def of_response(self, response_id: str) -> list[Event]:
        return [event for event in self.events if _response_of(event) == response_id]

    def types(self, response_id: str) -> list[str]:
        """Types of the response's events in order, runs of one type as one."""
        return [name for name, _ in itertools.groupby(event.type for event in self.of_response(response_id))]

    def deltas(self, response_id: str) -> list[Event]:
        return [event for event in self.of_response(response_id) if event.type == "response.output_audio.delta"]

    def sound(self, response_id: str) -> bytes:
        return b"".join(base64.b64decode(event.delta) for event in self.deltas(response_id))

    def text(self, response_id: str) -> str:
        return "".join(e.delta for e in self.of_response(response_id) if e.type == "response.output_audio_transcript.delta")

    def heard(self, item_id: str) -> str:
        """The final transcript of a user item."""
        done = self.of("conversation.item.input_audio_transcription.completed")
        (transcript,) = [event.transcript for event in done if event.item_id == item_id]
        return str(transcript)


def _response_of(event: Event) -> str | None:
    response = getattr(event, "response", None)
    return response.id if response is not None else getattr(event, "response_id", None)


@asynccontextmanager
async def call(house: EmbeddedHouse, turn_detection: dict[str, Any], *, microphone: bool = True) -> AsyncIterator[Caller]:
    """A welcomed and configured conversation, with an open microphone or without. Nothing in it may be refused."""
    client = AsyncOpenAI(api_key="a key", websocket_base_url=house.websocket)
    async with client, client.realtime.connect(model="parley-embedded") as connection:
        caller = Caller(connection)
        try:
            await caller.until("session.created")
            await caller.configure(audio={"input": {"turn_detection": turn_detection, "transcription": {"model": "default"}}})
            if microphone:
                caller.open_microphone()
            yield caller
            assert not [event.error.message for event in caller.of("error")]
        finally:
            await caller.close()
