"""The processes that a part of the benchmark measures: Valkey, stub stages, gateways; and what each of them uses."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from pathlib import Path
from types import TracebackType

from benchmarks.house import THREADS
from session_store import Store
from stage_kit.scripted import SERVICES
from tests.support.process import Child
from tests.support.valkey import ValkeyProcess

STAGES = ("turn", "asr", "llm", "talker", "vocoder")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def machine_busy_seconds() -> float:
    """CPU time of everything on the machine so far, idling and waiting left out."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / _TICKS_PER_S


class Fleet:
    """Every stage in a process of its service, and `gateways` of them. An async context; nothing is left afterwards."""

    def __init__(self, *, gateways: int = 1, slots: int = 256) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="parley-bench-"))
        self.valkey = ValkeyProcess()
        env = {**THREADS, "PARLEY_REDIS_URL": self.valkey.url, "PARLEY_DRAIN_S": "1", "PARLEY_DRAIN_TIMEOUT_MS": "0"}
        stub = ["-m", "benchmarks.session.stubs", "--slots", str(slots), "--service"]
        self.stages = [Child(name, [*stub, name], env, self._folder) for name in SERVICES]
        served = {**env, "PARLEY_HTTP_BIND": "127.0.0.1:0", "PARLEY_LOG_LEVEL": "WARNING"}
        self.gateways = [Child(f"gateway{n}", ["-m", "gateway"], served, self._folder) for n in range(gateways)]

    async def __aenter__(self) -> Fleet:
        try:
            await asyncio.to_thread(self._start)
            await self._registered()
        except BaseException:
            self._stop()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await asyncio.to_thread(self._stop)

    @property
    def address(self) -> str:
        """host:port of the first gateway."""
        return str(self.gateways[0].ready["http"])

    def _start(self) -> None:
        self.valkey.start()
        for child in (*self.stages, *self.gateways):
            child.start()
        for child in (*self.stages, *self.gateways):
            child.wait_ready()

    def _stop(self) -> None:
        children = (*self.gateways, *self.stages)
        for child in children:
            child.ask_to_stop()
        for child in children:
            child.stop()
        self.valkey.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _registered(self) -> None:
        deadline = time.monotonic() + 20
        async with await Store.open(self.valkey.url) as store:
            while {stage.stage for replica in await store.registry.replicas() for stage in replica.stages} < set(STAGES):
                if time.monotonic() > deadline:
                    raise RuntimeError("the stages did not register")
                await asyncio.sleep(0.05)


class Meter:
    """CPU-seconds a second of named groups of processes, and of the whole machine, since it was made."""

    def __init__(self, groups: dict[str, list[int]]) -> None:
        self._groups = groups
        self._began, self._before, self._machine = time.perf_counter(), self._now(), machine_busy_seconds()

    def read(self) -> dict[str, float]:
        """By group; "others" is what the machine did besides."""
        seconds = time.perf_counter() - self._began
        used = {name: (now - self._before[name]) / seconds for name, now in self._now().items()}
        machine = (machine_busy_seconds() - self._machine) / seconds
        return used | {"others": max(0.0, machine - sum(used.values()))}

    def _now(self) -> dict[str, float]:
        return {name: sum(cpu_seconds(pid) for pid in pids) for name, pids in self._groups.items()}
