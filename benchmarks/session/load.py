"""`python -m benchmarks.session.load`: conversations of 100 ms audio in and out, from a process of its own.

Obeys lines on stdin and answers each with one line of JSON: `open` (session ids), `speak` (microphones and replies begin), `measure`
(counts begin anew), `stop` (what was counted). A piece that leaves more than LATE_MS after its time is late.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator

import msgspec
import pybase64
import uvloop
from websockets.asyncio.client import ClientConnection, connect

RATE = 24_000
PIECE_MS = 100
PIECE_BYTES = RATE * PIECE_MS // 1000 * 2
LATE_MS = 20.0
OPENING = 8
"""Upgrades under way at once."""
APPEND = '{"type":"input_audio_buffer.append"'
DELTA = '{"type":"response.output_audio.delta"'
ASK = '{"type":"response.create","response":{"instructions":"go on"}}'


def encode(audio: bytes) -> str:
    return pybase64.b64encode_as_string(audio)


def piece() -> str:
    """100 ms of silence, as the client sends it."""
    return f'{APPEND},"audio":"{encode(bytes(PIECE_BYTES))}"}}'


class Counts(msgspec.Struct):
    """sent, late: pieces; deltas: pieces heard; worst_late_ms of any piece; lost: conversations that ended early."""

    sent: int = 0
    late: int = 0
    deltas: int = 0
    worst_late_ms: float = 0.0
    lost: int = 0
    bytes_per_delta: float = 0.0


class Crowd:
    def __init__(self, url: str, conversations: int, *, microphones: bool) -> None:
        self._url, self._wanted, self._microphones = url, conversations, microphones
        self._sockets: list[ClientConnection] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.counts = Counts()

    async def open(self) -> list[str]:
        gate = asyncio.Semaphore(OPENING)

        async def one() -> str:
            async with gate:
                socket = await connect(self._url, max_size=None, compression=None, open_timeout=30)
                self._sockets.append(socket)
                session_id = json.loads(await socket.recv())["session"]["id"]
                assert isinstance(session_id, str)
                return session_id

        return list(await asyncio.gather(*(one() for _ in range(self._wanted))))

    async def speak(self) -> None:
        """Each conversation asks for a reply; replies and microphones are spread evenly over a piece, as people are."""
        start = time.perf_counter()
        for number, socket in enumerate(self._sockets):
            self._tasks.append(asyncio.create_task(self._hear(socket)))
            first = start + number * PIECE_MS / 1000 / len(self._sockets)
            self._tasks.append(asyncio.create_task(self._talk(socket, first)))

    async def stop(self) -> Counts:
        for task in self._tasks:
            task.cancel()
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        self.counts.lost = sum(isinstance(end, Exception) for end in ends)
        await asyncio.gather(*(socket.close() for socket in self._sockets))
        return self.counts

    async def _talk(self, socket: ClientConnection, due: float) -> None:
        text = piece()
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        await socket.send(ASK)
        while self._microphones:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            late_ms = (time.perf_counter() - due) * 1000
            await socket.send(text)
            counts = self.counts
            counts.sent += 1
            counts.late += late_ms > LATE_MS
            counts.worst_late_ms = max(counts.worst_late_ms, late_ms)
            due += PIECE_MS / 1000

    async def _hear(self, socket: ClientConnection) -> None:
        async for message in socket:
            if message.startswith(DELTA):  # type: ignore[arg-type]
                self.counts.deltas += 1
                self.counts.bytes_per_delta = len(message)
        raise ConnectionError("the session ended")


async def _lines() -> AsyncIterator[str]:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield line.decode().strip()


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.session.load")
    parser.add_argument("--url", required=True)
    parser.add_argument("--conversations", type=int, required=True)
    parser.add_argument("--microphones", action=argparse.BooleanOptionalAction, default=True)
    arguments = parser.parse_args()
    crowd = Crowd(arguments.url, arguments.conversations, microphones=arguments.microphones)
    async for order in _lines():
        answer: object = None
        match order:
            case "open":
                answer = await crowd.open()
            case "speak":
                await crowd.speak()
            case "measure":
                crowd.counts = Counts()
            case "stop":
                answer = msgspec.to_builtins(await crowd.stop())
        print(json.dumps(answer), flush=True)
        if order == "stop":
            return


if __name__ == "__main__":
    uvloop.run(main())
