"""The whole of it: a store, a gateway and three services as processes of their own, and clients that speak in real time."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pybase64
import websockets
import yaml

from benchmarks.native.material import TEXT_TOKENS, VOICE, Bench
from benchmarks.native.talk import FIRST_MS, RATE, UNIT_MS
from parley.supervisor.mps import CONTROL, Mps
from tests.support.valkey import ValkeyProcess

ROOT = Path(__file__).parents[2]
PACKET = RATE // 50
STAGES = ("thinker", "talker", "vocoder")
START_S = 300.0
RESTARTS, BACKOFF_S = 5, 0.25
"""As the supervisor's: a service that dies as it starts is started again, each time later by twice as much."""
SKIPPED = 4
"""Units at the beginning that are not counted: three that must listen, and one that meets new shapes."""


class Talk(msgspec.Struct):
    """One client: milliseconds from a unit's last packet to its first text and first sound, unit by unit, and how playback went."""

    text: list[float] = []
    sound: list[float] = []
    late_ms: list[float] = []
    """Of each unit's sound: how long the listener would have waited for it, had everything before been played without a gap."""
    units: int = 0
    errors: list[str] = []


class Deployed:
    """What runs: the gateways' addresses, and all processes by name."""

    def __init__(
        self, folder: Path, processes: dict[str, subprocess.Popen[bytes]], start: Callable[[str], subprocess.Popen[bytes]], store: int
    ) -> None:
        fronts = [name for name in processes if name not in STAGES]
        self.addresses: list[str] = [json.loads((folder / f"{front}.json").read_text())["http"] for front in fronts]
        self.stages: dict[str, str] = {stage: json.loads((folder / f"{stage}.json").read_text())["http"] for stage in STAGES}
        """Where each service tells its metrics."""
        self.store = store
        """Process id of Valkey."""
        self._folder, self._processes, self._start = folder, processes, start

    @property
    def pids(self) -> dict[str, int]:
        """Of gateways and services, by name."""
        return {name: process.pid for name, process in self._processes.items()}

    @property
    def dead(self) -> list[str]:
        """Processes that ended, though nobody told them to."""
        return [name for name, process in self._processes.items() if process.poll() is not None]

    async def revive(self, name: str) -> tuple[float, int]:
        """Kills a process, and starts it again as a supervisor does, at once and, where it dies, again a little later; seconds until it is
        ready, and how often it was started. Raises RuntimeError where it never is."""
        self._processes[name].kill()
        await asyncio.to_thread(self._processes[name].wait)
        # gone where it ended in order just before
        (self._folder / f"{name}.json").unlink(missing_ok=True)
        began = time.monotonic()
        starts = 0
        while True:
            self._processes[name], starts = self._start(name), starts + 1
            try:
                await _ready(self._folder, name, self._processes[name])
            except RuntimeError:
                if starts > RESTARTS or self._processes[name].poll() is None:
                    raise
                await asyncio.sleep(BACKOFF_S * 2 ** (starts - 1))
            else:
                return time.monotonic() - began, starts


@asynccontextmanager
async def deployed(
    bench: Bench, *, mps: bool, gateways: int = 1, lead_ms: int = 1000, service: str = "benchmarks.native.service", **env: str
) -> AsyncIterator[Deployed]:
    """`mps`: the services share the card through NVIDIA's control daemon, else by time slices. `lead_ms`: sound may be at the client so
    long before it is played. `service`: the module that serves a stage. `env`: of all processes; `thinker:NAME` is the thinker's alone."""
    folder = Path(tempfile.mkdtemp(prefix="parley-native-"))
    profile = yaml.safe_load((ROOT / "profiles" / "minicpmo45.yaml").read_text())
    del profile["nodes"]["turn"], profile["publish"]["turn"]
    profile["session"]["voice"] = VOICE
    profile["pacing"]["max_output_lead_ms"] = lead_ms
    (folder / "profile.yaml").write_text(yaml.safe_dump(profile))
    daemon = Mps(CONTROL, folder / "mps") if mps else None
    if daemon is not None:
        daemon.start()
    processes: dict[str, subprocess.Popen[bytes]] = {}
    with ValkeyProcess() as valkey:
        shared = {
            **os.environ,
            **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
            "PARLEY_REDIS_URL": valkey.url,
            "PARLEY_DRAIN_S": "1",
            "PARLEY_PROFILE": str(folder / "profile.yaml"),
            "PARLEY_CHECKPOINT": str(bench.checkpoint),
            "PARLEY_DEVICE": bench.device,
            "PARLEY_THINKER_SCRIPT": str(bench.checkpoint / "bench_script.json"),
            "PARLEY_BENCH_CONTEXT": str(bench.context),
            "PARLEY_BENCH_HELD": str(bench.held),
            "PARLEY_VOCODER_VOICES_BYTES": str(bench.vocoder().voices_bytes),
            **{f"PARLEY_{stage.upper()}_SLOTS": str(bench.slots) for stage in STAGES},
            **(daemon.env if daemon is not None else {}),
            **env,
        }
        fronts = ["gateway", *(f"gateway{n}" for n in range(2, gateways + 1))]
        commands = {stage: ["-m", service, stage] for stage in STAGES} | {front: ["-m", "gateway"] for front in fronts}
        try:
            for name, arguments in commands.items():
                processes[name] = _started(folder, name, arguments, shared)
            for name, process in processes.items():
                await _ready(folder, name, process)
            yield Deployed(folder, processes, lambda name: _started(folder, name, commands[name], shared), valkey.pid)
        finally:
            for process in reversed(processes.values()):
                process.terminate()
            for process in processes.values():
                await asyncio.to_thread(process.wait)
            if daemon is not None:
                daemon.stop()


async def converse(address: str, sessions: int, units: int, jpeg: bytes | None) -> list[Talk]:
    """`sessions` clients, whose units end evenly spread over a second, each for `units` units."""
    began = time.perf_counter() + 1.0
    work = (_client(address, began + row / sessions, units, jpeg) for row in range(sessions))
    return list(await asyncio.gather(*work))


async def _client(address: str, began: float, units: int, jpeg: bytes | None) -> Talk:
    talk = Talk()
    async with await _connected(address) as socket:
        ear = asyncio.create_task(_hear(socket, began, talk))
        await _speak(socket, began, (FIRST_MS + (units - 1) * UNIT_MS) * RATE // 1000, jpeg)
        await asyncio.sleep(1.5)
        ear.cancel()
    talk.units = units
    return talk


async def _connected(address: str) -> websockets.ClientConnection:
    for _ in range(100):
        try:
            return await websockets.connect(f"ws://{address}/v1/realtime", max_size=None)
        except (websockets.InvalidStatus, OSError):
            await asyncio.sleep(0.2)
    raise RuntimeError("no session could be opened")


async def _speak(socket: websockets.ClientConnection, began: float, samples: int, jpeg: bytes | None) -> None:
    noise = (np.random.default_rng(1).standard_normal(RATE) * 3000).astype(np.int16)
    picture = pybase64.b64encode(jpeg).decode() if jpeg is not None else ""
    for start in range(0, samples, PACKET):
        await asyncio.sleep(max(0.0, began + (start + PACKET) / RATE - time.perf_counter()))
        piece = np.resize(np.roll(noise, -start), PACKET)
        event: dict[str, Any] = {"type": "input_audio_buffer.append", "audio": pybase64.b64encode(piece.tobytes()).decode()}
        if picture and start * 1000 // RATE % UNIT_MS == 500:
            event["video_frames"] = [picture]
        await socket.send(json.dumps(event))


async def _hear(socket: websockets.ClientConnection, began: float, talk: Talk) -> None:
    """The n-th speaking unit has the texts from 3 n on, and the sound from its 24,000 n on."""
    texts, samples, played_until = 0, 0, 0.0
    first_speaking = SKIPPED - 1
    async for message in socket:
        now, event = time.perf_counter(), json.loads(message)
        if event["type"] == "error":
            talk.errors.append(event["error"]["message"])
        elif event["type"] == "response.output_audio_transcript.delta":
            if texts % TEXT_TOKENS == 0:
                talk.text.append(_lag(now, began, first_speaking + texts // TEXT_TOKENS))
            texts += 1
        elif event["type"] == "response.output_audio.delta":
            count = len(pybase64.b64decode(event["delta"])) // 2
            unit = samples // RATE
            if len(talk.sound) <= unit:
                talk.sound.append(_lag(now, began, first_speaking + unit))
                talk.late_ms.append(max(0.0, (now - played_until) * 1000) if samples else 0.0)
            played_until = max(played_until, now) + count / RATE
            samples += count


def _lag(now: float, began: float, unit: int) -> float:
    """Milliseconds since the packet that completed the unit (counted from 0) left."""
    return (now - began - (FIRST_MS + unit * UNIT_MS) / 1000) * 1000


def _started(folder: Path, name: str, arguments: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
    own = {"PARLEY_READY_FILE": str(folder / f"{name}.json"), "PARLEY_HTTP_BIND": "127.0.0.1:0"}
    own |= {setting.removeprefix(f"{name}:"): value for setting, value in env.items() if setting.startswith(f"{name}:")}
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen([sys.executable, *arguments], env=env | own, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)


async def _ready(folder: Path, name: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while not (folder / f"{name}.json").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{name} did not become ready: {(folder / f'{name}.log').read_text(errors='replace')[-1500:]}")
        await asyncio.sleep(0.05)
