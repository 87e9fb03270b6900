"""One client's conversation over as many sockets as it takes, stock or ours, and what it must have heard."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any, Literal
from urllib.parse import urlencode

from websockets.asyncio.client import ClientConnection, connect

from session_store import Store, StoreSettings
from tests.support.house import House
from tests.support.listener import Event, Listener

Way = Literal["query", "headers", "message"]
"""How a session is asked for again; only our client does it by message."""
STOCK: tuple[Way, ...] = ("query", "headers")
OF_THE_LINE = ("session.resumed", "session.replaced", "session.durability")
"""Events that tell of a connection, and have no place in the session."""


class Line(Listener):
    """`heard` is everything that the conversation ever told, whatever socket it came by."""

    extended: bool
    token: str
    sockets: list[Line]
    """Every line of the conversation, resumed from one another."""

    @property
    def session_id(self) -> str:
        found: str = next(event for event in self.events if event["type"] == "session.created")["session"]["id"]
        return found

    @classmethod
    async def dial(cls, url: str, *, extended: bool = False, **options: Any) -> Line:
        """A new conversation, welcomed."""
        line = cls(await _connect(url + ("?parley=1" if extended else ""), **options))
        line.extended, line.sockets = extended, [line]
        line.token = (await line.until("session.created"))["session"]["resume_token"]
        return line

    async def resume(self, url: str, way: Way | None = None, *, token: str | None = None, last: int | None = None) -> Line:
        """The same conversation on a new socket, up to the event that says so; this line is left as it is."""
        way, token = way or ("message" if self.extended else "query"), token or self.token
        heard, last = list(self.heard), self.last if last is None else last
        socket = await _connect(url + resume_query(way, self.session_id, token, last), **resume_options(way, self.session_id, token, last))
        line = Line(socket)
        line.extended, line.sockets = self.extended, self.sockets
        line.sockets.append(line)
        line.heard, line._at = heard, len(heard)
        if way == "message":
            unnumbered = self.unnumbered if last == self.last else 0
            await line.send("session.resume", session_id=self.session_id, resume_token=token, last_seq=last, unnumbered=unnumbered)
        back = await line.until(lambda e: e["type"] in ("session.created", "session.resumed"))
        assert back["session"]["id"] == self.session_id and number(back) is None
        assert back["type"] == ("session.resumed" if way == "message" or self.extended else "session.created")
        line.token = back["session"]["resume_token"]
        return line

    def vanish(self) -> None:
        """The connection is lost without a word."""
        self.socket.transport.abort()

    async def hang_up(self) -> None:
        with contextlib.suppress(OSError):
            await self.socket.close()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    @property
    def numbers(self) -> list[int]:
        """Of all events that have one, in the order of arrival."""
        return [n for event in self.events if (n := number(event)) is not None]

    @property
    def last(self) -> int:
        return max(self.numbers, default=0)

    @property
    def unnumbered(self) -> int:
        """Events of the session that came without a number since the last one with it."""
        since = next((at for at, event in enumerate(reversed(self.events)) if number(event) is not None), len(self.events))
        return sum(event["type"] not in OF_THE_LINE for event in self.events[len(self.events) - since :])

    def check_numbers(self) -> None:
        """Nothing is missing, nothing came twice, nothing out of order."""
        assert self.numbers == list(range(1, len(self.numbers) + 1))

    async def speaking(self, words: int, deltas: int = 1) -> str:
        """A reply of which some sound has come: its id."""
        made = await self.ask("hello", instructions=f"words={words}")
        for _ in range(deltas):
            await self.until("response.output_audio.delta")
        response_id: str = made["id"]
        return response_id


async def until(test: Callable[[], Awaitable[bool]], timeout_s: float = 30.0) -> None:
    """Asks again and again until it is so. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while True:
            if await test():
                return
            await asyncio.sleep(0.02)


async def until_recorded(house: House, line: Line, state: str) -> None:
    """Until the store knows the session to be so. Raises TimeoutError."""

    async def known() -> bool:
        return await house.records(line.session_id) == [state]

    await until(known)


async def until_trusted(house: House) -> None:
    """Until the store is known to have forgotten nothing: before, nobody is refused for good. Raises TimeoutError."""
    async with await Store.open(house.valkey.url, StoreSettings(redis_timeout_ms=5000)) as store:

        async def trusted() -> bool:
            return await store.registry.mute_ms() == 0

        await until(trusted)


def number(event: Event) -> int | None:
    """The position that an event id carries."""
    tail = str(event.get("event_id", "")).rpartition("_")[2]
    return int(tail) if tail.isdigit() else None


def resume_query(way: Way, session_id: str, token: str, last: int) -> str:
    if way == "message":
        return "?parley=1&resume=1"
    if way == "headers":
        return ""
    return "?" + urlencode({"resume": session_id, "resume_token": token, "last_event_id": event_id(session_id, last)})


def resume_options(way: Way, session_id: str, token: str, last: int) -> dict[str, Any]:
    if way != "headers":
        return {}
    return {
        "additional_headers": {
            "Parley-Resume": session_id,
            "Parley-Resume-Token": token,
            "Parley-Last-Event-Id": event_id(session_id, last),
        }
    }


def event_id(session_id: str, last: int) -> str:
    return f"event_{session_id.removeprefix('sess_')}_{last}"


async def refusal_by_message(url: str, session_id: str, token: str, last: int = 0) -> tuple[str, tuple[int, str] | None]:
    """Our client's resume that is refused: the error's code, and how the socket closed."""
    socket = await _connect(url + "?parley=1&resume=1")
    await socket.send(json.dumps({"type": "session.resume", "session_id": session_id, "resume_token": token, "last_seq": last}))
    listener = Listener(socket)
    error = await listener.until("error")
    return error["error"]["code"], await listener.until_closed()


async def _connect(url: str, **options: Any) -> ClientConnection:
    return await connect(url, max_size=None, compression=None, **options)
