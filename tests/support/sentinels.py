"""A Valkey that fails over: a primary, a replica, and sentinels that watch them. Real processes on ports of 127.0.0.1."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from redis import ConnectionError as NoServer
from redis import Redis

from tests.support.valkey import ValkeyProcess, find_server

SERVICE = "parley"
DOWN_AFTER_MS = 300
TIMEOUT_S = 20.0
Address = tuple[str, int]
T = TypeVar("T")


class Node(ValkeyProcess):
    """One server, reachable at a port, too."""

    def __init__(self) -> None:
        self.port = _free_port()
        super().__init__("--bind", "127.0.0.1", "--port", str(self.port), "--repl-diskless-sync-delay", "0", "--repl-timeout", "5")

    @property
    def address(self) -> Address:
        return "127.0.0.1", self.port

    def ask(self, *words: Any) -> Any:
        """The answer to one command."""
        with Redis(unix_socket_path=self.url.removeprefix("unix://")) as admin:
            return admin.execute_command(*words)

    def role(self) -> str:
        return str(self.ask("ROLE")[0].decode())

    def follow(self, primary: Node) -> None:
        """Becomes a replica."""
        self.ask("REPLICAOF", *primary.address)

    def follows(self) -> bool:
        """It has all."""
        return bool(self.ask("ROLE")[3] == b"connected")

    def deafen(self) -> None:
        """It stays a replica, and hears nothing of what is written from now on."""
        self.ask("CONFIG", "SET", "primaryauth", "wrong")
        self.ask("CLIENT", "KILL", "TYPE", "primary")
        wait(lambda: not self.follows())


class Sentinel:
    """One sentinel process."""

    def __init__(self, password: str = "") -> None:
        self.port, self.id, self._password = _free_port(), secrets.token_hex(20), password
        self._folder = Path(tempfile.mkdtemp(prefix="parley-sentinel-"))
        self._process: subprocess.Popen[bytes] | None = None

    def configure(self, primary: Address, replicas: Sequence[Address], others: Sequence[Sentinel]) -> None:
        """Before its first start. It knows the others from the start, so that it need not wait to hear of them."""
        lines = [f"port {self.port}", "bind 127.0.0.1", f"dir {self._folder}", f"sentinel myid {self.id}"]
        lines += [f"requirepass {self._password}"] if self._password else []
        lines += [f"sentinel monitor {SERVICE} {primary[0]} {primary[1]} 2"]
        lines += [f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}", f"sentinel failover-timeout {SERVICE} 3000"]
        lines += [f"sentinel known-replica {SERVICE} {host} {port}" for host, port in replicas]
        lines += [f"sentinel known-sentinel {SERVICE} 127.0.0.1 {other.port} {other.id}" for other in others if other is not self]
        (self._folder / "sentinel.conf").write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        command = [str(find_server()), "sentinel.conf", "--sentinel"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait(lambda: self.ask("PING") in (True, b"PONG"))
        # what it asks for once a second or less often, so that a failover takes one second instead of three
        self.ask("SENTINEL", "DEBUG", "INFO-PERIOD", "100", "ASK-PERIOD", "100")

    def ask(self, *words: Any) -> Any:
        with Redis(port=self.port, password=self._password or None) as admin:
            return admin.execute_command(*words)

    def named(self) -> Address:
        """The primary that it names."""
        host, port = self.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return host.decode(), int(port)

    def pause(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Harmless when it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


class Watched:
    """`nodes[0]` is the primary at first, `nodes[1]` its replica, if there is one. Two sentinels promote it. A context manager."""

    def __init__(self, *, sentinels: int = 3, replica: bool = True, sentinel_password: str = "") -> None:
        self.nodes = [Node(), Node()] if replica else [Node()]
        self.sentinels = [Sentinel(sentinel_password) for _ in range(sentinels)]

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(self.hosts)}/{SERVICE}"

    @property
    def hosts(self) -> list[str]:
        return [f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels]

    def start(self) -> Watched:
        primary, *replicas = self.nodes
        for node in self.nodes:
            node.start()
        for replica in replicas:
            replica.follow(primary)
        for sentinel in self.sentinels:
            sentinel.configure(primary.address, [replica.address for replica in replicas], self.sentinels)
            sentinel.start()
        for replica in replicas:
            wait(replica.follows)
        return self

    def primary(self) -> Node:
        """Whom most of the sentinels name, once that one says so itself."""

        def agreed() -> Node | None:
            named = [sentinel.named() for sentinel in self.sentinels]
            for node in self.nodes:
                if named.count(node.address) > len(named) // 2 and node.role() == "master":
                    return node
            return None

        return wait(agreed)

    def steady(self) -> None:
        """From now on nobody is taken for dead who answers late, as on a loaded machine."""
        for sentinel in self.sentinels:
            sentinel.ask("SENTINEL", "SET", SERVICE, "down-after-milliseconds", 600_000)

    def heal(self) -> None:
        """Starts who is dead, and has it follow the primary."""
        primary = self.primary()
        for node in self.nodes:
            if node is not primary:
                node.kill()
                node.start()
                node.follow(primary)
                wait(node.follows)

    def stop(self) -> None:
        for sentinel in self.sentinels:
            sentinel.stop()
        for node in self.nodes:
            node.stop()

    def __enter__(self) -> Watched:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def _free_port() -> int:
    """Below those that the system gives to connections: it is still free when a server that was killed comes back."""
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def wait(question: Callable[[], T | None]) -> T:
    """The first answer that is true; who cannot be asked yet has none. Raises TimeoutError."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            if answer := question():
                return answer
        except NoServer:
            pass
        time.sleep(0.01)
    raise TimeoutError("it did not come to that")
