"""Small real child processes for the supervisor: each is a few lines of Python that behave in one way."""

from __future__ import annotations

import asyncio
import os
import select
import sys
from pathlib import Path

import msgspec

from parley.supervisor import Plan, RunFolder, ServiceSpec, SupervisorSettings
from parley.supervisor.ready import ReadyFile, StoreAnswers
from parley.supervisor.store import find_store, store_command

HEAD = """
import json, os, signal, subprocess, sys, threading
def ready(**more):
    path = os.environ["PARLEY_READY_FILE"]
    with open(path + ".new", "w") as file:
        json.dump({"pid": os.getpid(), **more}, file)
    os.rename(path + ".new", path)
"""
SERVES = "ready(); print('ready', flush=True); signal.pause()"
IGNORES_SIGTERM = "signal.signal(signal.SIGTERM, signal.SIG_IGN); ready()\nwhile True: signal.pause()"
DIES_AT_ONCE = "print('there is no such file: weights.bin', file=sys.stderr); sys.exit(3)"
DIES_WITH_JSON = """print(json.dumps({"event": "start failed", "exception": "Traceback:\\nOSError: no memory"}), flush=True); sys.exit(4)"""
NEVER_READY = "signal.pause()"
DIES_ONCE_WHEN_TOLD = """
ready()
signal.signal(signal.SIGUSR1, lambda *_: os._exit(7))
while True: signal.pause()
"""
READY_THEN_DIES = "ready(); print('the engine broke', flush=True); sys.exit(5)"
HAS_A_CHILD_OF_ITS_OWN = """
stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\\nwhile True: signal.pause()"
grandchild = subprocess.Popen([sys.executable, "-c", stubborn])
ready(grpc=str(grandchild.pid)); signal.pause()
"""
SETTINGS = SupervisorSettings(
    start_timeout_s=30.0,
    poll_interval_s=0.01,
    stop_gateway_s=0.3,
    stop_services_s=0.6,
    stop_kill_s=0.8,
    max_restarts=2,
    restart_backoff_s=0.02,
)
PATIENT = SETTINGS.model_copy(update={"stop_gateway_s": 30.0, "stop_services_s": 40.0, "stop_kill_s": 50.0})
"""For processes that stop when they are told: however slow the machine, none is told early or killed."""


def service(folder: RunFolder, name: str, code: str = SERVES) -> ServiceSpec:
    """A process that runs code after HEAD."""
    ready = folder.ready_file(name)
    return ServiceSpec(name, (sys.executable, "-I", "-S", "-c", HEAD + code), ReadyFile(ready), {"PARLEY_READY_FILE": str(ready)})


def plan(folder: RunFolder, *, services: dict[str, str], gateway: str = SERVES) -> Plan:
    """A real store, services by name and code, and a gateway that runs code."""
    store = ServiceSpec("store", store_command(find_store(), folder.store_socket), StoreAnswers(folder.store_socket))
    return Plan(store, tuple(service(folder, name, code) for name, code in services.items()), service(folder, "gateway", gateway))


class Recorder:
    """A reporter that remembers, and that can be waited on."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self.started: list[str] = []
        self.became_ready: list[str] = []
        self.notes: list[str] = []
        self.notices: list[str] = []

    def starting(self, name: str) -> None:
        self.started.append(name)

    def ready(self, name: str, took_s: float) -> None:
        self.became_ready.append(name)
        self._changed.set()

    def note(self, line: str) -> None:
        self.notes.append(line)

    def notice(self, line: str) -> None:
        self.notices.append(line)
        self._changed.set()

    async def until_ready(self, name: str, times: int = 1) -> None:
        """Waits until name became ready so many times. Raises TimeoutError after 30 s."""
        async with asyncio.timeout(30):
            while self.became_ready.count(name) < times:
                self._changed.clear()
                await self._changed.wait()

    async def until_noticed(self, beginning: str) -> None:
        """Waits for a notice that begins so. Raises TimeoutError after 30 s."""
        async with asyncio.timeout(30):
            while not any(line.startswith(beginning) for line in self.notices):
                self._changed.clear()
                await self._changed.wait()


class Watched:
    """Processes that the test wants to see end; opened while they live, so that a number used again cannot deceive."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._fds = {name: os.pidfd_open(pid) for name, pid in pids.items()}

    @classmethod
    def of(cls, folder: Path) -> Watched:
        """Everything that a supervisor wrote into its folder's pid file."""
        return cls(msgspec.json.decode((folder / "pids.json").read_bytes(), type=dict[str, int]))

    def alive_after(self, timeout_s: float) -> set[str]:
        """Names of those that did not end within timeout_s. Closes the handles."""
        left = {fd: name for name, fd in self._fds.items()}
        poll = select.poll()
        for fd in left:
            poll.register(fd, select.POLLIN)
        while left and (ended := poll.poll(timeout_s * 1000)):
            for fd, _ in ended:
                poll.unregister(fd)
                left.pop(fd)
        for fd in self._fds.values():
            os.close(fd)
        return set(left.values())
