"""Clients of a soak run, as a process of its own: as `load_client`, and they keep all that they hear and read.

Sound lies in the order's folder as PCM16, a file a response; a session that is open has a file with its id.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pybase64
import websockets

from benchmarks.native.load_client import TAIL_S, _connected, _speak
from benchmarks.native.talk import FIRST_MS, UNIT_MS, Talk


class Order(msgspec.Struct):
    """Client n is `names[n]`; the rest as in `load_client.Order`."""

    names: list[str]
    urls: list[str]
    begins: float
    offsets: list[float]
    units: int
    folder: str


class Response(msgspec.Struct):
    """What became of one."""

    begun: float
    text: str = ""
    status: str = ""
    """As it was told when it was done; empty: it was not."""
    reason: str = ""
    pcm: str = ""
    """File of its sound."""


class Soaked(Talk):
    """All that one client saw, in the order in which it did."""

    name: str = ""
    session: str = ""
    responses: dict[str, Response] = {}
    troubles: list[tuple[float, str]] = []
    """Errors, and when they were told."""
    closed: float | None = None
    """When the server closed the session."""
    why: str = ""


class Client:
    """One session."""

    def __init__(self, name: str, folder: Path) -> None:
        self.found = Soaked(name=name)
        self._folder = folder
        self._open = folder / f"{name}.session"
        self._heard: dict[str, bytearray] = {}

    async def talk(self, url: str, begins: float, units: int) -> Soaked:
        """From its connection to its last unit's answer."""
        found = self.found
        try:
            async with await _connected(url) as socket:
                ear = asyncio.create_task(self._hear(socket))
                try:
                    await _speak(socket, found, begins, FIRST_MS + (units - 1) * UNIT_MS, b"")
                    await asyncio.sleep(TAIL_S)
                except websockets.ConnectionClosed:
                    pass  # the ear knows
                finally:
                    ear.cancel()
        except Exception as error:
            found.errors.append(f"{type(error).__name__}: {str(error)[:200]}")
        self._open.unlink(missing_ok=True)
        for response in list(self._heard):
            self._keep(response)
        return found

    async def _hear(self, socket: websockets.ClientConnection) -> None:
        try:
            async for message in socket:
                self._take(time.monotonic(), json.loads(message))
        except websockets.ConnectionClosedError:
            pass
        self.found.closed, self.found.why = time.monotonic(), f"{socket.close_code} {socket.close_reason}"
        self._open.unlink(missing_ok=True)

    def _take(self, now: float, event: dict[str, Any]) -> None:
        found = self.found
        match event["type"]:
            case "session.created":
                found.session = event["session"]["id"]
                self._open.write_text(found.session)
            case "error":
                found.errors.append(event["error"]["message"])
                found.troubles.append((now, f"{event['error']['code']}: {event['error']['message']}"))
            case "session.decision":
                found.decisions.append((event["unit"], event["decision"], event["end_ms"], event["response_id"] or "", now))
            case "response.created":
                found.responses[event["response"]["id"]] = Response(now)
            case "response.output_audio_transcript.delta":
                found.responses[event["response_id"]].text += event["delta"]
            case "response.output_audio.delta":
                response = event["response_id"]
                pcm = self._heard.setdefault(response, bytearray())
                pcm += pybase64.b64decode(event["delta"])
                found.sound.setdefault(response, []).append((len(pcm) // 2, now))
            case "response.done":
                self._done(now, event["response"])

    def _done(self, now: float, response: dict[str, Any]) -> None:
        found = self.found
        found.done[response["id"]] = now
        told = found.responses[response["id"]]
        details = response["status_details"] or {}
        told.status, told.reason = response["status"], details.get("reason") or (details.get("error") or {}).get("code") or ""
        self._keep(response["id"])

    def _keep(self, response: str) -> None:
        pcm = self._heard.pop(response, None)
        if pcm:
            file = self._folder / f"{self.found.name}-{len(self.found.sound)}.pcm"
            file.write_bytes(pcm)
            self.found.responses[response].pcm = str(file)


async def main() -> None:
    order = msgspec.json.decode(await asyncio.to_thread(sys.stdin.readline), type=Order)
    clients = [Client(name, Path(order.folder)) for name in order.names]
    work = [
        client.talk(url, order.begins + offset, order.units) for client, url, offset in zip(clients, order.urls, order.offsets, strict=True)
    ]
    print(msgspec.json.encode(await asyncio.gather(*work)).decode(), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
