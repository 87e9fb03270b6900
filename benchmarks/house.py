"""Starts a whole deployment of real processes for a benchmark, and speaks to it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
import wave
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pybase64
import soxr
import websockets
from numpy.typing import NDArray

from tests.support.valkey import ValkeyProcess

ROOT = Path(__file__).parents[1]
RATE = 24_000
PACKET = RATE // 50  # 20 ms
NATIVE = {"vad": ["-m", "vad_svc"], "model": ["-m", "stage_kit.scripted", "--service", "model"]}
EMBEDDED = {"vad": "vad_svc", "thinker": "thinker_svc", "talker": "talker_svc", "vocoder": "vocoder_svc"}
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@asynccontextmanager
async def house(kind: str, **env: str) -> AsyncIterator[str]:
    """kind: "embedded" (real models), "scripted" (stub engines), "native" (the real detector beside a stub of a native model).

    Yields the gateway's host:port; nothing is left afterwards.
    """
    folder = Path(tempfile.mkdtemp(prefix="parley-bench-"))
    with ValkeyProcess() as valkey:
        shared = {**os.environ, **THREADS, "PARLEY_REDIS_URL": valkey.url, "PARLEY_DRAIN_S": "1", **env}
        if kind == "embedded":
            commands = {name: ["-m", module] for name, module in EMBEDDED.items()}
        elif kind == "native":
            commands = dict(NATIVE)
        else:
            commands = {name: ["-m", "stage_kit.scripted", "--service", name] for name in EMBEDDED}
        commands["gateway"] = ["-m", "gateway"]
        processes = []
        try:
            for name, arguments in commands.items():
                extra = {"PARLEY_READY_FILE": str(folder / f"{name}.json"), "PARLEY_HTTP_BIND": "127.0.0.1:0"}
                with (folder / f"{name}.log").open("wb") as log:
                    processes.append(
                        await asyncio.create_subprocess_exec(
                            sys.executable, *arguments, env={**shared, **extra}, cwd=ROOT, stdout=log, stderr=log
                        )
                    )
            await asyncio.gather(*(_ready(folder, name, process) for name, process in zip(commands, processes, strict=True)))
            await _registered(json.loads((folder / "gateway.json").read_text())["http"])
            yield json.loads((folder / "gateway.json").read_text())["http"]
        finally:
            for process in reversed(processes):
                if process.returncode is None:
                    process.terminate()
            await asyncio.gather(*(process.wait() for process in processes))


async def _ready(folder: Path, name: str, process: asyncio.subprocess.Process) -> None:
    deadline = time.monotonic() + 120
    while not (folder / f"{name}.json").exists():
        if process.returncode is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{name} did not become ready: {(folder / f'{name}.log').read_text()[-500:]}")
        await asyncio.sleep(0.05)


async def _registered(address: str) -> None:
    """A session can be opened: every stage is in the registry."""
    for _ in range(100):
        try:
            async with websockets.connect(f"ws://{address}/v1/realtime"):
                return
        except websockets.InvalidStatus:
            await asyncio.sleep(0.1)
    raise RuntimeError("no session could be opened")


def speech(path: Path) -> NDArray[np.int16]:
    """A WAV at the wire's rate."""
    with wave.open(str(path)) as recording:
        samples = np.frombuffer(recording.readframes(recording.getnframes()), np.int16)
        rate = recording.getframerate()
    return np.asarray(soxr.resample(samples, rate, RATE), np.int16) if rate != RATE else samples


def append(samples: NDArray[np.int16]) -> str:
    return '{"type":"input_audio_buffer.append","audio":"' + pybase64.b64encode(samples.tobytes()).decode() + '"}'


class Talker:
    """One client: a real-time microphone and a list of what came back, each with its time (perf_counter seconds)."""

    def __init__(self, socket: websockets.ClientConnection, packet: int = PACKET) -> None:
        """packet: samples an append."""
        self.socket, self._packet = socket, packet
        self.events: list[tuple[float, dict[str, Any]]] = []
        self.said = 0
        self.began = time.perf_counter()
        self._queue: list[NDArray[np.int16]] = []
        self._came = asyncio.Event()
        self._tasks = [asyncio.create_task(self._microphone()), asyncio.create_task(self._ear())]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.socket.close()

    def say(self, samples: NDArray[np.int16]) -> int:
        """Queue speech; returns the sample index at which it begins."""
        start = self.said + sum(len(part) for part in self._queue)
        self._queue.append(samples)
        return start

    def sent_at(self, sample: int) -> float:
        """When this sample's packet left."""
        return self.began + (sample // self._packet + 1) * self._packet / RATE

    async def _microphone(self) -> None:
        packet = self._packet
        silence = np.zeros(packet, np.int16)
        while True:
            await asyncio.sleep(max(0.0, self.sent_at(self.said) - time.perf_counter()))
            piece = silence
            if self._queue:
                head = self._queue[0]
                piece, rest = head[:packet], head[packet:]
                self._queue[0:1] = [rest] if len(rest) else []
                piece = np.pad(piece, (0, packet - len(piece)))
            await self.socket.send(append(piece))
            self.said += packet

    async def _ear(self) -> None:
        async for message in self.socket:
            self.events.append((time.perf_counter(), json.loads(message)))
            self._came.set()

    async def until(self, kind: str, start: int = 0, timeout_s: float = 60) -> int:
        """Index of the first event of this type at or after start."""
        async with asyncio.timeout(timeout_s):
            while True:
                for index in range(start, len(self.events)):
                    if self.events[index][1]["type"] == kind:
                        return index
                start = len(self.events)
                self._came.clear()
                await self._came.wait()
