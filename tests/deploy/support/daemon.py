"""`dockerd` in a folder of its own: started, found again by another process than the one that started it, and ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from .shell import run

STOP_S = 60.0
POLL_S = 0.1


class Daemon:
    """folder: where its socket, its data and its log lie."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> str:
        return f"unix://{self._folder / 'docker.sock'}"

    def start(self) -> None:
        """It may take a while until it answers."""
        places = {"--data-root": "data", "--exec-root": "exec", "--pidfile": "pid"}
        command = ["/usr/sbin/dockerd", "--host", self.socket]
        command += [word for option, name in places.items() for word in (option, str(self._folder / name))]
        with (self._folder / "dockerd.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0)

    def runs(self) -> bool:
        return self._process.poll() is None if self._process is not None else self._pid() is not None

    def said(self) -> str:
        """The end of its log."""
        return (self._folder / "dockerd.log").read_text(errors="replace")[-2000:]

    def stop(self) -> None:
        """Returns when it is gone, with all its helpers and containers, and when nothing is mounted in its folder any more."""
        pid = self._pid()
        if pid is not None and not self._end(pid, signal.SIGTERM):
            self._end(pid, signal.SIGKILL)
        until = time.monotonic() + STOP_S
        while (helpers := _descended(str(self._folder).encode())) and time.monotonic() < until:
            for helper in helpers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(helper, signal.SIGKILL)
            time.sleep(POLL_S)
        for place in self._mounted():
            run("umount", "--lazy", place)

    def _end(self, pid: int, number: signal.Signals) -> bool:
        """Whether it is gone, some time after it was told."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        until = time.monotonic() + STOP_S
        while self.runs():
            if time.monotonic() > until:
                return False
            time.sleep(POLL_S)
        return True

    def _pid(self) -> int | None:
        """Of whoever runs on this folder, whoever started it."""
        if self._process is not None:
            return self._process.pid if self._process.poll() is None else None
        try:
            pid = int((self._folder / "pid").read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        return pid if str(self._folder).encode() in command else None

    def _mounted(self) -> list[str]:
        """Inner ones first."""
        places = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        return sorted((place for place in places if place.startswith(f"{self._folder}/")), reverse=True)


def _descended(word: bytes) -> set[int]:
    """Processes whose command has the word in it, and all that these have started: containers' are a helper's children."""
    parents, found = {}, set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if word in (folder / "cmdline").read_bytes():
                found.add(int(folder.name))
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found
