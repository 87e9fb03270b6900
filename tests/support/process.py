"""Child processes of tests: started with a ready file and a log, stopped by their own handles."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.nursery import ROOT, Forked, NurseryEnded, Order, nursery

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0


class Child:
    """One Python process of the house. `ready` is what its ready file says. One that is `forked` is up sooner; see nursery."""

    def __init__(self, name: str, arguments: Sequence[str], env: Mapping[str, str], folder: Path, *, forked: bool = False) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.ready: dict[str, Any] = {}
        self._ready_file = folder / f"{name}.ready"
        self._arguments = arguments
        self._forked = forked
        self._env = {**os.environ, **env, "PARLEY_READY_FILE": str(self._ready_file), "PYTHONUNBUFFERED": "1"}
        self._process: subprocess.Popen[bytes] | Forked | None = None

    def start(self, env: Mapping[str, str] | None = None) -> None:
        """Starts it, this time with `env` besides; `wait_ready` tells when it serves."""
        self._ready_file.unlink(missing_ok=True)
        whole = {**self._env, **(env or {})}
        if self._forked:
            _, module, *arguments = self._arguments
            self._process = nursery().fork(Order(module, arguments, whole, str(self.log)))
            return
        command = [sys.executable, *self._arguments]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, cwd=ROOT, env=whole, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def wait_ready(self) -> None:
        """Raises RuntimeError with the end of its log if it does not come up."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._ready_file.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"{self.name} did not start: {self.tail()}")
            time.sleep(0.02)
        self.ready = json.loads(self._ready_file.read_text())

    @property
    def process(self) -> subprocess.Popen[bytes] | Forked:
        assert self._process is not None, f"{self.name} does not run"
        return self._process

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Its exit code. Raises subprocess.TimeoutExpired."""
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL. Harmless when it has ended."""
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(NurseryEnded):
                self._process.wait()

    def ask_to_stop(self) -> None:
        """SIGTERM, also to one that is stopped. Harmless when it has ended."""
        with contextlib.suppress(NurseryEnded):
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(signal.SIGCONT)
                self._process.terminate()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL for one that does not go. Harmless when it has ended."""
        self.ask_to_stop()
        try:
            if self._process is not None:
                self._process.wait(STOP_TIMEOUT_S)
        except (subprocess.TimeoutExpired, NurseryEnded):
            self.kill()

    def tail(self, size: int = 3000) -> str:
        with contextlib.suppress(OSError):
            return self.log.read_text(errors="replace")[-size:]
        return ""

    def rss_bytes(self) -> int:
        """Resident memory now."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
