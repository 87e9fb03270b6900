"""From a redial to `session.resumed` and to the first replayed audio, beside a bare redial."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect

from benchmarks import report
from benchmarks.session.fleet import Fleet
from benchmarks.session.load import APPEND, ASK, DELTA, piece
from tests.support.process import Child

TITLE = "Resume"
GOAL_MS = 500.0
CALLERS = 5
HEARD = 4
"""Pieces of audio between two losses of the connection."""
AWAY_S = 0.3
"""The line is dead for so long: what is said meanwhile is to be replayed."""


class Redial(msgspec.Struct):
    """Milliseconds from the dial; `replayed` events lay between what the caller had and what was live."""

    resumed_ms: float
    audio_ms: float
    replayed: int


class Caller:
    """One conversation that loses its connection again and again, each time to find the other gateway."""

    def __init__(self, gateways: list[str]) -> None:
        self._gateways = gateways
        self._dials = 0
        self._session_id = self._token = ""
        self._seq = 0

    async def run(self, times: int) -> list[Redial]:
        socket = await connect(self._url("parley=1"), max_size=None, compression=None)
        session = json.loads(await socket.recv())["session"]
        self._session_id, self._token = session["id"], session["resume_token"]
        await socket.send(ASK)
        redials = []
        for _ in range(times):
            await self._listen(socket, HEARD)
            socket.transport.abort()
            await asyncio.sleep(AWAY_S)
            socket, redial = await self._redial()
            redials.append(redial)
        await self._listen(socket, 1)
        await socket.close()
        return redials

    def _url(self, query: str) -> str:
        self._dials += 1
        return f"ws://{self._gateways[self._dials % len(self._gateways)]}/v1/realtime?{query}"

    async def _redial(self) -> tuple[ClientConnection, Redial]:
        had, url = self._seq, self._url("parley=1&resume=1")
        ask = {"type": "session.resume", "session_id": self._session_id, "resume_token": self._token, "last_seq": had}
        began = time.perf_counter()
        socket = await connect(url, max_size=None, compression=None)
        await socket.send(json.dumps(ask))
        answer = json.loads(await socket.recv())
        resumed = time.perf_counter()
        if answer["type"] != "session.resumed":
            raise RuntimeError(f"not resumed: {answer['type']} {answer.get('error', {}).get('code', '')}")
        self._token = answer["resume_token"]
        await self._listen(socket, 1)
        heard = time.perf_counter()
        if self._seq > answer["seq"]:
            raise RuntimeError("nothing was replayed")
        await socket.send(piece())
        return socket, Redial((resumed - began) * 1000, (heard - began) * 1000, answer["seq"] - had)

    async def _listen(self, socket: ClientConnection, pieces: int) -> None:
        """Until so many pieces of audio came; a number that is not the next one is an error."""
        while pieces:
            message = await socket.recv()
            assert isinstance(message, str)
            seq = int(json.loads(message)["event_id"].rpartition("_")[2])
            if self._seq and seq != self._seq + 1:
                raise RuntimeError(f"event {seq} came after {self._seq}")
            self._seq = seq
            pieces -= message.startswith(DELTA)


async def _bare(times: int) -> list[float]:
    """Dial, send, first answer: a `websockets` server that does nothing."""
    with tempfile.TemporaryDirectory(prefix="parley-bench-") as folder:
        echo = Child("echo", ["-m", "benchmarks.session.echo"], {}, Path(folder))
        echo.start()
        try:
            await asyncio.to_thread(echo.wait_ready)
            return [await _bare_dial(f"ws://{echo.ready['http']}/") for _ in range(times)]
        finally:
            await asyncio.to_thread(echo.stop)


async def _bare_dial(url: str) -> float:
    began = time.perf_counter()
    socket = await connect(url, max_size=None, compression=None)
    await socket.send(f"{APPEND}}}")
    await socket.recv()
    await socket.recv()
    took_ms = (time.perf_counter() - began) * 1000
    await socket.close()
    return took_ms


async def measure(times: int) -> dict[str, Any]:
    async with Fleet(gateways=2, slots=CALLERS + 8) as fleet:
        gateways = [str(gateway.ready["http"]) for gateway in fleet.gateways]
        found = await asyncio.gather(*(Caller(gateways).run(times // CALLERS) for _ in range(CALLERS)))
        redials = [redial for each in found for redial in each]
        floor = await _bare(times)
    columns: Mapping[str, list[float]] = {
        "resumed_ms": [redial.resumed_ms for redial in redials],
        "audio_ms": [redial.audio_ms for redial in redials],
        "after_resumed_ms": [redial.audio_ms - redial.resumed_ms for redial in redials],
        "floor_ms": floor,
    }
    return {
        "resumes": len(redials),
        "callers": CALLERS,
        "replayed_events": report.percentile([float(redial.replayed) for redial in redials], 50),
        **{name: [report.percentile(values, q) for q in (50, 99, 100)] for name, values in columns.items()},
        "samples": dict(columns),
    }


def section(raw: dict[str, Any]) -> str:
    rows = [
        ["redial to session.resumed", *raw["resumed_ms"]],
        ["a bare redial, to its first answer", *raw["floor_ms"]],
        ["redial to the first replayed audio", *raw["audio_ms"]],
        ["session.resumed to the first replayed audio", *raw["after_resumed_ms"]],
    ]
    return "\n".join(
        [
            report.table(("ms", "p50", "p99", "worst"), [[name, *(f"{value:.2f}" for value in values)] for name, *values in rows]),
            "",
            f"{raw['resumes']} resumes of {raw['callers']} conversations in mid-sentence, each on the other of two gateways, with five",
            f"scripted stages in four processes to attach to; every event came exactly once. Goal: p99 under {GOAL_MS:.0f} ms.",
            f"Replayed each time (median): {raw['replayed_events']:.0f} events.",
        ]
    )
