"""A process that has imported the libraries of our services and is forked for each: a house of many starts in a fraction of the time.

What is ours is imported anew in each, and reads its environment then, as it does where it is started by itself.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
LIBRARIES = (
    *("fastapi", "uvicorn", "uvloop", "grpc.aio", "grpc_health.v1.health", "redis.asyncio", "pydantic_settings"),
    *("prometheus_client", "structlog", "tenacity", "yaml", "numpy.typing", "msgspec", "soxr", "pybase64"),
)
"""What takes long to import in the gateway and in scripted services."""
LARGEST = 1 << 12
"""Bytes of a message, which holds no order: it comes as a file, however long it is."""
WATCH_S = 0.01
PR_SET_PDEATHSIG = 1


class NurseryEnded(RuntimeError):
    """Nobody can fork any more, nor tell how those ended that were forked; they were killed."""


class Order(msgspec.Struct):
    """`python -m module arguments` with this whole environment; its output is appended to the file `log`."""

    module: str
    arguments: Sequence[str]
    env: Mapping[str, str]
    log: str


class Forked:
    """A process of the nursery, handled as a `subprocess.Popen`."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._nursery = nursery

    def poll(self) -> int | None:
        """Raises NurseryEnded."""
        self._nursery.hear()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired and NurseryEnded."""
        begun = time.monotonic()
        while (code := self.poll()) is None:
            if timeout is not None and time.monotonic() - begun > timeout:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(WATCH_S)
        return code

    def send_signal(self, number: int) -> None:
        """Harmless when it has ended."""
        try:
            ended = self.poll() is not None
        except NurseryEnded:
            # they get a SIGKILL, but not all at that very moment
            ended = False
        if not ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The tests' end of it, for all their threads. The process ends when the tests do, and those it forked with it, however they end."""

    def __init__(self) -> None:
        self._running: dict[int, Forked] = {}
        self._lock = threading.Lock()
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.support.nursery", str(theirs.fileno())]
        # threads that a library started would be missing in those that are forked
        env = {**os.environ, "PYTHONUNBUFFERED": "1", "OPENBLAS_NUM_THREADS": "1"}
        with theirs:
            self._process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        atexit.register(self.close)

    def fork(self, order: Order) -> Forked:
        """Raises NurseryEnded."""
        with self._lock, os.fdopen(os.memfd_create("order"), "w+b") as file:
            file.write(msgspec.msgpack.encode(order))
            file.flush()
            with _over():
                socket.send_fds(self._line, [b"order"], [file.fileno()])
            while (begun := self._next()) is None:
                pass
        return begun

    def hear(self) -> None:
        """Notes who has ended until now. Raises NurseryEnded."""
        with self._lock, contextlib.suppress(BlockingIOError):
            while True:
                self._next(socket.MSG_DONTWAIT)

    def _next(self, flags: int = 0) -> Forked | None:
        """Takes a message: who has ended is told so; returns who has begun."""
        with _over():
            said = self._line.recv(LARGEST, flags)
            if not said:
                raise ConnectionResetError
        pid, code = msgspec.msgpack.decode(said, type=tuple[int, int | None])
        if code is None:
            begun = self._running[pid] = Forked(self, pid)
            return begun
        self._running.pop(pid).returncode = code
        return None

    def close(self) -> int:
        """Ends it, and those that were forked. Its exit code."""
        self._line.close()
        return self._process.wait()


nursery = functools.cache(Nursery)
"""That of this process."""


@contextlib.contextmanager
def _over() -> Iterator[None]:
    try:
        yield
    except (BrokenPipeError, ConnectionResetError):
        raise NurseryEnded("the nursery has ended") from None


def main() -> None:
    line = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in LIBRARIES:
        importlib.import_module(name)
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a process with threads cannot be forked"
    gc.freeze()
    order = _serve(line)
    if order is not None:
        _become(order)


def _serve(line: socket.socket) -> Order | None:
    """Forks what is ordered and tells who ended, until nobody is there to hear it. In a process that was forked: its order."""
    woken, waking = socket.socketpair()
    for end in (woken, waking):
        end.setblocking(False)
    signal.set_wakeup_fd(waking.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([line, woken], [], [])
        if woken in ready:
            woken.recv(LARGEST)
            _tell_ends(line)
        if line not in ready:
            continue
        try:
            said, orders, _, _ = socket.recv_fds(line, LARGEST, 1)
        except ConnectionResetError:  # the tests are gone and did not hear of all ends
            return None
        if not said:
            return None
        nursery_pid = os.getpid()
        if not (pid := os.fork()):
            _end_with(nursery_pid)
            signal.set_wakeup_fd(-1)
            for end in (line, woken, waking):
                end.close()
            with os.fdopen(orders[0], "rb") as file:
                file.seek(0)
                return msgspec.msgpack.decode(file.read(), type=Order)
        os.close(orders[0])
        line.send(msgspec.msgpack.encode((pid, None)))


def _end_with(parent: int) -> None:
    """Whoever forked this process, and has no threads, takes it along."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL)) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    # it may have ended before
    if os.getppid() != parent:
        os._exit(1)


def _tell_ends(line: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError, BrokenPipeError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            line.send(msgspec.msgpack.encode((pid, os.waitstatus_to_exitcode(status))))


def _become(order: Order) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(order.env)
    with open(order.log, "ab") as log:  # noqa: PTH123
        for output in (1, 2):
            os.dup2(log.fileno(), output)
    sys.argv = [order.module, *order.arguments]
    runpy.run_module(order.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
