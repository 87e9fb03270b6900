"""One child process in its own process group, with its log file; it does not outlive the supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from .folder import RunFolder
from .log import last_line
from .plan import ServiceSpec
from .ready import Ready

LAUNCHER = Path(__file__).with_name("launch.py")


class Child:
    """A started process. `started` is monotonic seconds."""

    def __init__(self, spec: ServiceSpec, process: asyncio.subprocess.Process, log: Path) -> None:
        self.spec, self.log = spec, log
        self.started = time.monotonic()
        self._process = process
        self._group_gone = False

    @classmethod
    async def spawn(cls, spec: ServiceSpec, folder: RunFolder) -> Child:
        """Starts it; what an earlier process of this name left as readiness is removed first. Call it from the main thread: the
        kernel ties the child's life to the thread that started it. Raises OSError.
        """
        spec.readiness.reset()
        log = folder.log(spec.name)
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), *spec.command,
                stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, **spec.env}, process_group=0,
            )  # fmt: skip
        return cls(spec, process, log)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.returncode

    @property
    def ready(self) -> Ready | None:
        """What it said of itself when it was ready; None before."""
        return self.spec.readiness.look()

    async def exited(self) -> int:
        """Waits for its end and reaps it; what it left in its process group is killed."""
        code = await self._process.wait()
        self.signal(signal.SIGKILL)
        self._group_gone = True
        return code

    def signal(self, number: signal.Signals) -> None:
        """To its whole process group; harmless when nothing of it is left."""
        if self._group_gone:
            return  # the number may belong to somebody else by now
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def how_it_ended(self) -> str:
        """One line: exit code or signal, and what it said last."""
        code = self.exit_code or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        said = last_line(self.log)
        return f"{self.name} {how}: {said}" if said else f"{self.name} {how} and said nothing"
