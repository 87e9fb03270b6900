"""A small resuming client, written against the wire directly, so that defects of the product's client hide none of the server's.

It numbers its commands, keeps what it sent, and after every lost connection dials any gateway, sends again what the server announces not to
have, and goes on. What the server may never do (a number lost, doubled or out of order) it notes as a problem.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

Event = dict[str, Any]
EXTENSIONS = ("session.resumed", "session.replaced", "session.resync_required", "session.durability")
AGAIN = ("session_resume_conflict", "stages_unavailable", "server_draining", "session_taken_over")
"""Refusals of a resume after which it is asked for again."""
GIVE_UP_S = 25.0
OPEN_TIMEOUT_S = 3.0
ACK_EVERY = 16


class Sound(msgspec.Struct, frozen=True):
    start: int
    """Samples before it."""
    pcm: bytes


class Command(msgspec.Struct, frozen=True):
    number: int
    text: str


class SessionOver(Exception):
    """The server says that there is no such session any more."""


class ChaosClient:
    """One session over as many connections as it takes. `urls` gives the gateways of now; `rng` all that is random."""

    def __init__(self, name: str, urls: Callable[[], list[str]], rng: random.Random) -> None:
        self.name, self._urls, self._rng = name, urls, rng
        self.session_id = ""
        self.events: list[Event] = []
        """Numbered events in the order in which they came, over all connections, and those that could not be numbered."""
        self.problems: list[str] = []
        self.lost = self.twice = self.disorder = 0
        self.resumes = self.resyncs = 0
        self.doubtful: set[str] = set()
        """Responses of which something was heard that the server may have forgotten: a resync told so."""
        self.last_seq = 0
        self.samples = 0
        """Of its voice, sent or on its way."""
        self.resume_seconds: list[float] = []
        self.over: str | None = None
        """Why the session ended, if it did."""
        self.socket: ClientConnection | None = None
        self.url = ""
        """Of the gateway that has it now."""
        self._kinds: defaultdict[str, list[Event]] = defaultdict(list)
        self._unsequenced = self._provisional = 0
        self._announced = True
        """The server says that what it says now could be replayed."""
        self._token = ""
        self._log: list[Sound | Command] = []
        self._commands = 0
        self._live = asyncio.Event()
        self._news = asyncio.Event()
        self._sending = asyncio.Lock()
        self._leaving = False
        self._task: asyncio.Task[None] | None = None

    # life

    async def start(self, url: str | None = None) -> ChaosClient:
        """Opens the session. Raises TimeoutError when nobody admits it in time."""
        self._task = asyncio.create_task(self._run(url), name=self.name)
        async with asyncio.timeout(GIVE_UP_S):
            await self.until(lambda: bool(self.session_id) or self._task is None or self._task.done())
        if not self.session_id:
            await self._finish()
            raise AssertionError(f"{self.name} was not admitted: {self.problems}")
        return self

    async def leave(self) -> None:
        """A goodbye: the session ends."""
        self._leaving = True
        async with asyncio.timeout(GIVE_UP_S):
            while self.socket is not None:
                socket = self.socket
                await socket.close(1000)
                await self.until(lambda gone=socket: self.socket is not gone)  # type: ignore[misc]
        await self._finish()

    async def vanish(self) -> None:
        """Gone without a word, and never back."""
        self._leaving = True
        if self.socket is not None:
            self.socket.transport.abort()
        await self._finish()

    async def _finish(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def drop(self) -> None:
        """Cut the connection; it is dialled again."""
        if self.socket is not None:
            self.socket.transport.abort()

    async def let_go(self) -> ClientConnection:
        """Stay away until `dial`, and leave the old socket open, as if the network only held it: the caller has it now."""
        await self.connected()
        socket, self.socket = self.socket, None
        assert socket is not None
        await self._finish()
        return socket

    def dial(self) -> None:
        """Come back after `let_go`."""
        self._task = asyncio.create_task(self._run(None), name=self.name)

    @property
    def resume_message(self) -> str:
        """What it would ask its session back with."""
        asked = {"type": "session.resume", "session_id": self.session_id, "resume_token": self._token, "last_seq": self.last_seq}
        return json.dumps({**asked, "unnumbered": self._unsequenced})

    @property
    def position(self) -> int:
        """Number of the last event that it heard, counted on where the server could give none."""
        return self.last_seq + self._unsequenced

    # what it says

    async def command(self, kind: str, **fields: Any) -> str:
        """Send one numbered command, now or after the next resume; returns its event_id."""
        async with self._sending:
            self._commands += 1
            event_id = f"{self.name}_{self._commands}"
            text = json.dumps({"type": kind, "event_id": event_id, "client_seq": self._commands, **fields})
            self._log.append(Command(self._commands, text))
            await self._send(text)
        return event_id

    async def sound(self, pcm: bytes) -> None:
        """Send samples; they are kept until the session ends."""
        async with self._sending:
            self._log.append(Sound(self.samples, pcm))
            self.samples += len(pcm) // 2
            await self._send(_append(pcm))

    async def _send(self, text: str) -> None:
        if self._live.is_set() and self.socket is not None:
            try:
                await self.socket.send(text)
            except ConnectionClosed:
                self._live.clear()

    async def connected(self) -> None:
        """Until it has a connection on which it may go on."""
        while not self._live.is_set():
            self._check_alive()
            self._news.clear()
            await self._news.wait()

    # what it hears

    async def until(self, test: Callable[[], bool]) -> None:
        """Until this is true. Raises SessionOver when the session ended before."""
        while not test():
            self._check_alive()
            self._news.clear()
            await self._news.wait()

    def _check_alive(self) -> None:
        if self.over is not None and not self._leaving:
            raise SessionOver(f"{self.name}: {self.over}")

    def of(self, kind: str) -> list[Event]:
        """Events of one type so far, in order."""
        return self._kinds[kind]

    @property
    def durable(self) -> bool:
        """What it heard last could be replayed."""
        return self._unsequenced == 0

    # connections

    async def _run(self, url: str | None) -> None:
        try:
            while not self._leaving and self.over is None:
                await self._connect(url)
                url = None
        except asyncio.CancelledError:
            raise
        except Exception as failure:
            self.problems.append(f"the client failed: {failure!r}")
            self.over = "client failed"
        finally:
            self.socket = None
            self._live.clear()
            self._news.set()

    async def _connect(self, url: str | None) -> None:
        """Dial until a gateway takes us; then read until the connection ends."""
        started = time.monotonic()
        while time.monotonic() - started < GIVE_UP_S and not self._leaving and self.over is None:
            at = url or self._pick()
            url = None
            try:
                socket = await connect(
                    at + ("?parley=1&resume=1" if self.session_id else "?parley=1"),
                    max_size=None, compression=None, open_timeout=OPEN_TIMEOUT_S, close_timeout=1, ping_interval=None,
                )  # fmt: skip
            except (OSError, TimeoutError, InvalidHandshake):
                await asyncio.sleep(self._rng.uniform(0.02, 0.1))
                continue
            if await self._serve(socket, at, started):
                return
            await asyncio.sleep(self._rng.uniform(0.02, 0.1))
        if not self._leaving and self.over is None:
            self.over = "nobody took it up"
            self.problems.append(f"stuck: no gateway took the session up within {GIVE_UP_S:.0f} s")

    def _pick(self) -> str:
        urls = self._urls()
        return self._rng.choice(urls) if urls else "ws://127.0.0.1:9"

    async def _serve(self, socket: ClientConnection, url: str, started: float) -> bool:
        """One connection to its end; False when it never went live."""
        self.socket = socket
        try:
            if not await self._greet(socket, started):
                return False
            self.url = url
            self._news.set()
            while self.socket is socket:
                text = await socket.recv()
                if self.socket is socket:
                    self._hear(json.loads(text))
            return True
        except ConnectionClosed as closed:
            self._closed(closed)
            return True
        finally:
            if self.socket is socket:
                self.socket = None
                self._live.clear()
                await socket.close()
            self._news.set()

    async def _greet(self, socket: ClientConnection, started: float) -> bool:
        """The first event: of a new session its creation, of a resumed one what to send again."""
        resuming = bool(self.session_id)
        if resuming:
            await socket.send(self.resume_message)
        try:
            async with asyncio.timeout(GIVE_UP_S / 2):
                first = json.loads(await socket.recv())
        except (TimeoutError, ConnectionClosed):
            return False
        if first["type"] == "error":
            self._refused(first["error"]["code"])
            return False
        if first["type"] == "session.created" and not resuming:
            self.session_id, self._token = first["session"]["id"], first["session"]["resume_token"]
            self._live.set()
            self._hear(first)
            return True
        if first["type"] != "session.resumed" or not resuming:
            self.problems.append(f"greeted with {first['type']}")
            return False
        await self._resumed(socket, first)
        self.resume_seconds.append(time.monotonic() - started)
        return True

    def _refused(self, code: str) -> None:
        if code not in AGAIN:
            self.over = code
            self.problems.append(f"resume refused: {code}")

    async def _resumed(self, socket: ClientConnection, resumed: Event) -> None:
        self.resumes += 1
        self._token = resumed["resume_token"]
        missing = resumed["first_seq"] - self.position - 1
        if missing > 0:
            self.lost += missing
            self.problems.append(f"events {self.position + 1} to {resumed['first_seq'] - 1} are not replayed")
        self._provisional, self.last_seq, self._unsequenced = self._unsequenced, max(self.position, resumed["first_seq"] - 1), 0
        self._announced = True
        async with self._sending:
            await self._send_again(socket, resumed["input_samples"], resumed["client_seq"])
            self._live.set()

    async def _send_again(self, socket: ClientConnection, input_samples: int, client_seq: int) -> None:
        """All that the server has not, in the order in which it was first said; sound in pieces of other sizes."""
        if input_samples > self.samples:
            self.problems.append(f"the server claims {input_samples} samples of {self.samples}")
        try:
            for entry in self._log:
                if isinstance(entry, Command):
                    if entry.number > client_seq:
                        await socket.send(entry.text)
                    continue
                rest = entry.pcm[max(0, input_samples - entry.start) * 2 :]
                while rest:
                    cut = self._rng.choice((len(rest), 2 * self._rng.randint(1, max(1, len(rest) // 2))))
                    await socket.send(_append(rest[:cut]))
                    rest = rest[cut:]
        except ConnectionClosed:
            return

    def _closed(self, closed: ConnectionClosed) -> None:
        frame = closed.rcvd
        if frame is None or self._leaving or frame.code in (1012, 1013):
            return
        self.problems.append(f"closed {frame.code} {frame.reason}")
        if frame.code in (1000, 1001, 1011):
            self.over = f"closed {frame.code} {frame.reason}"

    # numbers

    def _hear(self, event: Event) -> None:
        self._news.set()
        kind = event["type"]
        if kind in EXTENSIONS:
            self._extension(kind, event)
            return
        self.events.append(event)
        self._kinds[kind].append(event)
        tail = event["event_id"].rpartition("_")[2]
        if tail.startswith("u"):
            self._unsequenced += 1
            if self._announced:
                self.problems.append(f"{event['event_id']} has no number, which was not announced")
            return
        self._number(int(tail))
        if self.last_seq % ACK_EVERY == 0 and self.socket is not None and self._live.is_set():
            self._acknowledge()

    def _extension(self, kind: str, event: Event) -> None:
        if kind == "session.durability":
            self._announced = event["durable"]
        elif kind == "session.resync_required":
            self.resyncs += 1
            self.problems.append(f"resync required: {event['reason']}")
            self._forget_provisional()
            tail = event["event_id"].rpartition("_")[2]
            # it stands in the place of what is lost
            self.last_seq, self._unsequenced = max(self.last_seq, event["first_seq"] - 1 if tail.startswith("u") else int(tail)), 0
            self._unsequenced += tail.startswith("u")

    def _forget_provisional(self) -> None:
        """The server may have forgotten what it said without numbers before the connection was lost: the client cannot go by it."""
        while self._provisional:
            self._provisional -= 1
            event = self.events.pop()
            self._kinds[event["type"]].pop()
            self.doubtful.add(event.get("response_id") or event.get("response", {}).get("id", ""))

    def _number(self, seq: int) -> None:
        if seq <= self.last_seq:
            known = any(event["event_id"].endswith(f"_{seq}") for event in self.events[:-1])
            self.twice, self.disorder = self.twice + known, self.disorder + (not known)
            self.problems.append(f"event {seq} came after {self.last_seq}")
            return
        missing = seq - self.last_seq - 1
        if missing > self._unsequenced:
            self.lost += missing - self._unsequenced
            self.problems.append(f"event {seq} came after {self.last_seq} and {self._unsequenced} without a number")
        self.last_seq, self._unsequenced = seq, 0

    def _acknowledge(self) -> None:
        task = asyncio.create_task(self._send(json.dumps({"type": "session.event_ack", "seq": self.last_seq})))
        task.add_done_callback(lambda done: done.exception() if not done.cancelled() else None)


def _append(pcm: bytes) -> str:
    return json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(pcm).decode()})
