"""A service as a process, and one session's stream to one of its stages."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import soxr
from numpy.typing import NDArray
from parley_stage.v1 import stage_pb2, stage_pb2_grpc

CLIENT_RATE = 24_000


class ServiceProcess:
    """`python -m <module>`, ready when its ready file is there."""

    def __init__(self, module: str, folder: Path, **environment: str) -> None:
        self._ready = folder / f"{module}.ready.json"
        env = {**os.environ, "PARLEY_BIND": "127.0.0.1:0", "PARLEY_DRAIN_S": "0", "PARLEY_READY_FILE": str(self._ready), **environment}
        self.process = subprocess.Popen([sys.executable, "-m", module], env=env, stderr=subprocess.PIPE, text=True)

    async def address(self, limit_s: float = 30.0) -> str:
        deadline = time.monotonic() + limit_s
        while not self._ready.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the service is not ready (exit code {self.process.poll()})")
            await asyncio.sleep(0.02)
        return str(json.loads(self._ready.read_text())["grpc"])

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.communicate(timeout=10)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.communicate()
        return self.process.returncode


class StageSession:
    """One session at one stage: sends on its edges, gathers what the stage makes."""

    def __init__(self, call: Any, authority: stage_pb2.Authority) -> None:
        self._call = call
        self._authority = authority
        self._positions: dict[str, int] = {}
        self._sent = 0
        self.chunks: list[stage_pb2.Chunk] = []

    async def open(self, stage: str, edges: list[str], config: dict[str, Any]) -> None:
        audio = stage_pb2.AudioFormat(encoding=stage_pb2.AUDIO_ENCODING_PCM_S16LE, sample_rate_hz=CLIENT_RATE)
        await self._send(
            open=stage_pb2.Open(stage=stage, contract_version=1, config_json=json.dumps(config), input_format=audio, edges=edges)
        )
        await self.until(lambda message: message.HasField("opened"))

    async def audio(self, samples: NDArray[np.float32], append_ms: int = 100) -> None:
        """Float32 at 16 kHz, sent as a client would: PCM16 at 24 kHz."""
        pcm = np.clip(np.rint(soxr.resample(samples, 16_000, CLIENT_RATE) * 32768), -32768, 32767).astype("<i2")
        size = append_ms * CLIENT_RATE // 1000
        for start in range(0, pcm.size, size):
            piece = pcm[start : start + size]
            audio = stage_pb2.Audio(
                format=stage_pb2.AudioFormat(encoding=stage_pb2.AUDIO_ENCODING_PCM_S16LE, sample_rate_hz=CLIENT_RATE),
                data=piece.tobytes(),
                samples=piece.size,
                start_sample=self._sent,
            )
            self._sent += piece.size
            await self.append("client", stage_pb2.Payload(audio=audio))

    @property
    def now_ms(self) -> int:
        return self._sent * 1000 // CLIENT_RATE

    async def append(self, edge: str, payload: stage_pb2.Payload) -> None:
        previous = self._positions.get(edge, 0)
        self._positions[edge] = previous + 1
        append = stage_pb2.Append(
            edge=edge, position=previous + 1, previous=previous, lane=stage_pb2.LANE_INPUT, config_generation=1, payload=payload
        )
        await self._send(append=append)

    async def until(self, wanted: Any, limit_s: float = 20.0) -> stage_pb2.FromStage:
        """Reads until a message for which `wanted` is true. Raises on a refusal."""
        async with asyncio.timeout(limit_s):
            while True:
                message = await self._call.read()
                if message is grpc.aio.EOF:
                    raise ConnectionError("the stream ended")
                if message.HasField("error"):
                    raise RuntimeError(f"{message.error.param}: {message.error.message}")
                if message.HasField("chunk"):
                    self.chunks.append(message.chunk)
                if wanted(message):
                    return message

    async def close(self) -> None:
        await self._send(close=stage_pb2.Close(reason="test"))
        await self.until(lambda message: message.HasField("closed"))

    async def _send(self, **command: Any) -> None:
        await self._call.write(stage_pb2.ToStage(authority=self._authority, **command))


@asynccontextmanager
async def session(address: str, stage: str, edges: list[str], config: dict[str, Any], name: str = "s1") -> AsyncIterator[StageSession]:
    async with grpc.aio.insecure_channel(address) as channel:
        call = stage_pb2_grpc.StageStub(channel).Converse()  # type: ignore[no-untyped-call]
        authority = stage_pb2.Authority(session_id=name, placement=1, attachment=1, holder_id="test")
        opened = StageSession(call, authority)
        await opened.open(stage, edges, config)
        yield opened
        await opened.close()
        await call.done_writing()
