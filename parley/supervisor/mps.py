"""NVIDIA's Multi-Process Service for the processes that share one card: a control daemon with pipes and logs of its own.

A program, too: `python -I -S mps.py CONTROL FOLDER CARD START_S STOP_S` starts the daemon, writes PARLEY_READY_FILE, watches it, and ends
it at SIGTERM, also when whoever started the program dies. It ends by itself, with one line, when the daemon is gone or the card had a fatal
fault. It needs the standard library alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
PID_FILE = f"{CONTROL}.pid"
COMMON_NAME = "nvidia-cuda-mps"  # of daemon and servers
PR_SET_PDEATHSIG = 1
POLL_S = 0.02
WATCH_S = 1.0
KILLED_S = 0.3  # until a killed process is gone
ANSWER_S = 5.0
LOST_AFTER = 2
"""Trouble that is seen so often in a row does not pass by itself."""


class MpsError(Exception):
    """The daemon could not be started; the message says why in one line."""


def ask(control: str, pipes: Path, command: str, timeout_s: float = ANSWER_S) -> str | None:
    """What the daemon of these pipes answers; None: nothing within timeout_s, or it is not there."""
    try:
        done = subprocess.run(
            [control],
            input=f"{command}\n".encode(),
            env={**os.environ, PIPES: str(pipes)},
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def folders(folder: Path) -> dict[str, str]:
    """What the processes that share a card are given: where the daemon of this folder listens and writes."""
    return {PIPES: str(folder / "pipe"), LOGS: str(folder / "log")}


class Mps:
    """The daemon of one folder, which is made with mode 700. `env` is what the processes that share the card are given.

    card: as CUDA_VISIBLE_DEVICES names it, for the daemon's servers; None: all that this process sees. Seconds throughout.
    """

    def __init__(self, control: str, folder: Path, card: str | None = None) -> None:
        self._control, self._folder, self._card = control, folder, card
        self.env = folders(folder)
        self._pipes, self._logs = (Path(self.env[name]) for name in (PIPES, LOGS))
        self._servers: list[int] = []
        self._arising = False

    def start(self, timeout_s: float = ANSWER_S) -> None:
        """Returns when the daemon answers; one that answers there already is taken over. Raises MpsError; nothing is left then."""
        for path in (self._folder, self._pipes, self._logs):
            path.mkdir(mode=0o700, exist_ok=True)
        deadline = time.monotonic() + timeout_s
        if self._daemon() is not None and self._answers(timeout_s):
            return
        (self._pipes / PID_FILE).unlink(missing_ok=True)
        self._arising = True
        try:
            self._launch(timeout_s)
            while not self._answers(max(deadline - time.monotonic(), POLL_S)):
                if time.monotonic() > deadline:
                    raise MpsError(f"{CONTROL} does not answer within {timeout_s:g} s")
                time.sleep(POLL_S)
        except MpsError:
            self._arising = False
            self.stop(timeout_s=0.0)
            raise
        self._arising = False

    def trouble(self) -> str:
        """What is wrong with it now, in one line; "" when nothing is."""
        if not self._answers(ANSWER_S):
            # one that is slow harms nobody whom it has brought to the card
            return "" if self._daemon() is not None else f"{CONTROL} is gone"
        for server in self._servers:
            if "FAULT" in (ask(self._control, self._pipes, f"get_server_status {server}") or ""):
                return "the card had a fatal fault, which ends every process that shares it"
        return ""

    def stop(self, timeout_s: float = 1.0) -> None:
        """Tells it to quit, and kills what is left of daemon and servers after timeout_s. A quit waits for clients: they must be gone."""
        deadline = time.monotonic() + timeout_s
        while (daemon := self._daemon()) is None and self._arising and time.monotonic() < deadline:
            time.sleep(POLL_S)  # it may be between its birth and its pid file
        left = set(self._servers)
        if daemon is not None:
            left |= {daemon, *_children(daemon)}
        if timeout_s > 0:
            ask(self._control, self._pipes, "quit", timeout_s)
        left = _remaining(left, deadline)
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        _remaining(left, time.monotonic() + KILLED_S)

    def _launch(self, timeout_s: float) -> None:
        card = {"CUDA_VISIBLE_DEVICES": self._card} if self._card is not None else {}
        said = self._logs / "start.log"
        with said.open("wb") as output:  # no pipe: the daemon would hold it open
            try:
                done = subprocess.run(
                    [self._control, "-d"],
                    env={**os.environ, **self.env, **card},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    timeout=timeout_s,
                    check=False,
                )
            except OSError as error:
                raise MpsError(f"cannot start {self._control}: {error.strerror}") from error
            except subprocess.TimeoutExpired:
                raise MpsError(f"{CONTROL} -d did not return within {timeout_s:g} s") from None
        if done.returncode != 0:
            words = said.read_text(errors="replace").split()
            raise MpsError(f"{CONTROL} -d failed with code {done.returncode}: {' '.join(words) or 'it said nothing'}")

    def _answers(self, timeout_s: float) -> bool:
        answer = ask(self._control, self._pipes, "get_server_list", timeout_s)
        if answer is not None:
            self._servers = [int(word) for word in answer.split() if word.isdecimal()]
        return answer is not None

    def _daemon(self) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            pid = int((self._pipes / PID_FILE).read_text())
            return pid if _is_mps(pid) else None
        return None


def _status(pid: int) -> dict[str, str]:
    """Of a process; empty when it is gone or waits to be reaped."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    status = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return {} if status.get("State", "Z").startswith("Z") else status


def _is_mps(pid: int) -> bool:
    """Whether the process lives and is one of these: the number may belong to somebody else by now."""
    return _status(pid).get("Name") == COMMON_NAME


def _remaining(pids: set[int], deadline: float) -> set[int]:
    """Waits until they are gone; those that are not by then."""
    while (pids := {pid for pid in pids if _is_mps(pid)}) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return pids


def _children(daemon: int) -> list[int]:
    every = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())
    return [pid for pid in every if _status(pid).get("PPid") == str(daemon)]


class Told(BaseException):
    """To stop, whatever it is doing."""


def keep(mps: Mps, start_s: float, stop_s: float) -> str:
    """Holds the daemon until SIGTERM. Returns "" then, else what went wrong; the daemon is ended in any case. For the main thread."""

    def told(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Told

    signal.signal(signal.SIGTERM, told)
    try:
        mps.start(start_s)
        ready = Path(os.environ["PARLEY_READY_FILE"])
        fresh = ready.with_suffix(".new")
        fresh.write_text(json.dumps({"pid": os.getpid()}))
        fresh.rename(ready)
        return _watched(mps)
    except Told:
        return ""
    except MpsError as error:
        return str(error)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        mps.stop(stop_s)


def _watched(mps: Mps) -> str:
    """Returns when it is in trouble: what that is."""
    troubled, trouble = 0, ""
    while troubled < LOST_AFTER:
        time.sleep(WATCH_S)
        trouble = mps.trouble()
        troubled = troubled + 1 if trouble else 0
    return trouble


def main() -> None:
    control, folder, card, start_s, stop_s = sys.argv[1:]
    parent = os.getppid()
    if sys.platform == "linux":
        # instead of the launcher's SIGKILL: the daemon is to be ended, too
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != parent:
        sys.exit("the supervisor is gone")
    if trouble := keep(Mps(control, Path(folder), card), float(start_s), float(stop_s)):
        sys.exit(trouble)


if __name__ == "__main__":
    main()
