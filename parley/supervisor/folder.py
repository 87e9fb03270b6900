"""The private folder of one run: sockets, ready files, and a log file for each process."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

MAX_SOCKET_PATH_BYTES = 107  # sun_path of Linux, without its terminator


class RunFolder:
    """Readable by its owner alone. Removed at the end, unless something failed: then the logs stay."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, base: Path | None = None) -> RunFolder:
        """A new folder in base (default: the system's temporary folder). Raises OSError."""
        if base is not None:
            base.mkdir(parents=True, exist_ok=True)
        folder = cls(Path(tempfile.mkdtemp(prefix="parley-", dir=base)))
        if len(os.fsencode(folder.store_socket)) > MAX_SOCKET_PATH_BYTES:
            folder.remove()
            raise OSError(f"{base or tempfile.gettempdir()} is too long a path for a socket: name a shorter PARLEY_RUN_DIR")
        return folder

    @property
    def store_socket(self) -> Path:
        return self.path / "store.sock"

    def log(self, name: str) -> Path:
        """Standard output and error of a process."""
        return self.path / f"{name}.log"

    def ready_file(self, name: str) -> Path:
        """Where a service writes that it is ready."""
        return self.path / f"{name}.ready.json"

    @property
    def pid_file(self) -> Path:
        """JSON object: process name to pid, of everything that was started and not yet stopped."""
        return self.path / "pids.json"

    def share_folder(self, name: str) -> Path:
        """Pipes and logs of a daemon through which services share a card."""
        return self.path / name

    def keep_logs(self) -> None:
        """Removes everything but the logs."""
        for path in sorted(self.path.rglob("*"), reverse=True):  # what is in a folder comes before it
            if path.suffix != ".log":
                with contextlib.suppress(OSError):
                    path.rmdir() if path.is_dir() else path.unlink()

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
