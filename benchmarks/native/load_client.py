"""Clients of a load test, as a process of its own: obeys one line of JSON on stdin, answers with one.

Each client speaks in real time, open loop: what the server does never changes when a packet leaves.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import msgspec
import numpy as np
import pybase64
import websockets

from benchmarks.native.talk import FIRST_MS, PACKET_MS, RATE, UNIT_MS, Talk

PACKET = RATE * PACKET_MS // 1000
OPENING_S = 30.0
TAIL_S = 2.0


class Order(msgspec.Struct):
    """Client n connects to `urls[n]` and its first packet begins at `begins` + `offsets[n]` (monotonic seconds, one clock for all)."""

    urls: list[str]
    begins: float
    offsets: list[float]
    units: int
    frames: list[bool]
    """Which clients send a picture a unit, 500 ms into it."""
    picture: bytes
    cancels: bool = False
    """Every client cancels each second response 2 s after it began."""


async def talk(url: str, begins: float, units: int, picture: bytes, *, cancels: bool) -> Talk:
    """One client, from its connection to its last unit's answer."""
    found = Talk()
    try:
        async with await _connected(url) as socket:
            ear = asyncio.create_task(_hear(socket, found, cancels=cancels))
            try:
                await _speak(socket, found, begins, FIRST_MS + (units - 1) * UNIT_MS, picture)
                await asyncio.sleep(TAIL_S)
            finally:
                ear.cancel()
    except Exception as error:
        found.errors.append(f"{type(error).__name__}: {str(error)[:200]}")
    return found


async def _connected(url: str) -> websockets.ClientConnection:
    deadline = time.monotonic() + OPENING_S
    while True:
        try:
            return await websockets.connect(url, max_size=None, compression=None)
        except (websockets.InvalidStatus, OSError, TimeoutError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.3)


async def _speak(socket: websockets.ClientConnection, found: Talk, begins: float, length_ms: int, picture: bytes) -> None:
    noise = (np.random.default_rng(1).standard_normal(PACKET) * 3000).astype(np.int16)
    event: dict[str, Any] = {"type": "input_audio_buffer.append", "audio": pybase64.b64encode(noise.tobytes()).decode()}
    plain = json.dumps(event)
    seen = json.dumps({**event, "video_frames": [pybase64.b64encode(picture).decode()]}) if picture else plain
    for packet in range(-(-length_ms // PACKET_MS)):
        due = begins + (packet + 1) * PACKET_MS / 1000
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        found.sent.append(due)
        found.late_ms.append((time.monotonic() - due) * 1000)
        await socket.send(seen if packet * PACKET_MS % UNIT_MS == UNIT_MS // 2 else plain)


async def _hear(socket: websockets.ClientConnection, found: Talk, *, cancels: bool) -> None:
    begun: dict[str, int] = {}
    stopping: dict[str, float] = {}
    async for message in socket:
        now, event = time.monotonic(), json.loads(message)
        match event["type"]:
            case "error":
                found.errors.append(event["error"]["message"])
            case "session.decision":
                found.decisions.append((event["unit"], event["decision"], event["end_ms"], event["response_id"] or "", now))
            case "response.created":
                begun[event["response"]["id"]] = len(begun)
            case "response.output_audio.delta":
                response = event["response_id"]
                heard = found.sound.setdefault(response, [])
                heard.append(((heard[-1][0] if heard else 0) + len(pybase64.b64decode(event["delta"])) // 2, now))
                if response in stopping:
                    found.cancelled[-1] = (now - stopping[response]) * 1000
                elif cancels and begun.get(response, 0) % 2 == 1 and now - heard[0][1] > 2.0:
                    stopping[response] = time.monotonic()
                    found.cancelled.append(0.0)
                    await socket.send(json.dumps({"type": "response.cancel"}))
            case "response.done":
                found.done[event["response"]["id"]] = now


async def main() -> None:
    order = msgspec.json.decode(await asyncio.to_thread(sys.stdin.readline), type=Order)
    work = [
        talk(url, order.begins + offset, order.units, order.picture if framed else b"", cancels=order.cancels)
        for url, offset, framed in zip(order.urls, order.offsets, order.frames, strict=True)
    ]
    talks = await asyncio.gather(*work)
    print(msgspec.json.encode(list(talks)).decode(), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
