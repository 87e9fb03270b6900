"""A container engine of the tests' own, in a private folder; nothing of it is left afterwards, and what a killed run left goes first."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from . import firewall, packages
from .daemon import POLL_S, Daemon
from .firewall import Firewall
from .shell import Failed, run

DOCKER = "/usr/bin/docker"
ROOT = Path(__file__).parents[3]
BASE = "local/debian:bookworm"
PLACE = Path("/var/tmp")
PREFIX = "parley-deploy-"
FIREWALL = "firewall.json"
START_S = 60.0
BUILD_S = 600.0


@contextlib.contextmanager
def running() -> Iterator[Engine]:
    """The only one on this machine. Raises NotHere."""
    packages.install()
    try:
        alone = FileLock(PLACE / f".{PREFIX}lock").acquire(timeout=0)
    except Timeout:
        raise packages.NotHere("another run of these tests has an engine on this machine") from None
    with alone:
        for left in sorted(PLACE.glob(f"{PREFIX}*")):
            Engine(left).stop()
        engine = Engine()
        # whoever cancels the run is not left with an engine
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            engine.start()
            yield engine
        finally:
            engine.stop()
            signal.signal(signal.SIGTERM, before)


class Engine:
    """`dockerd` on a socket of its own. env: of programs that are to talk to it. folder: what an earlier one left."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or Path(tempfile.mkdtemp(prefix=PREFIX, dir=PLACE))
        self._daemon = Daemon(self.folder)
        client = {"DOCKER_HOST": self._daemon.socket, "DOCKER_BUILDKIT": "1", "DOCKER_CONFIG": str(self.folder / "client")}
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("DOCKER_")} | client

    def start(self) -> None:
        """Returns when it answers. Raises NotHere where another container engine runs: both would write the same rules."""
        if firewall.is_engines():
            raise packages.NotHere(
                "another container engine uses this machine's firewall; these tests start their own, where there is none"
            )
        Firewall.now().write(self.folder / FIREWALL)
        self._daemon.start()
        self._wait()

    def stop(self) -> None:
        """Ends it with all its containers, removes its folder, and puts the machine's network back; whoever started it, running or not."""
        if (before := self.folder / FIREWALL).exists():
            with contextlib.suppress(packages.NotHere, Failed, subprocess.TimeoutExpired):
                if not self._daemon.runs():
                    # it alone knows its containers, their mounts and its networks
                    self._daemon.start()
                    self._wait()
                if containers := self.docker("ps", "--all", "--quiet").split():
                    self.docker("rm", "--force", "--volumes", *containers)
                self.docker("network", "prune", "--force")
            self._daemon.stop()
            Firewall.read(before).restore()
            # first: who finds a folder without it has only the folder to remove
            before.unlink()
        shutil.rmtree(self.folder)

    def _wait(self) -> None:
        until = time.monotonic() + START_S
        while True:
            with contextlib.suppress(Failed):
                self.docker("version")
                return
            if not self._daemon.runs() or time.monotonic() > until:
                raise packages.NotHere(f"the container engine does not start here: {self._daemon.said()}")
            time.sleep(POLL_S)

    def docker(self, *arguments: str, timeout_s: float = 120.0) -> str:
        """What Debian's client says: the one that has BuildKit built in. Raises Failed."""
        return run(DOCKER, *arguments, env=self.env, timeout_s=timeout_s)

    def take_base(self) -> None:
        """The base of all images, out of Debian's archive."""
        self.docker("import", "--change", 'CMD ["/bin/bash"]', str(packages.base_archive()), BASE, timeout_s=BUILD_S)

    def build(self, target: str, tag: str, context: Path = ROOT) -> None:
        """An image of deploy/Dockerfile, as users build it, but for the base and for the authority in front of the package index."""
        arguments = ["--network", "host", "--build-arg", f"CPU_BASE={BASE}", "--build-arg", f"GPU_BASE={BASE}"]
        if bundle := packages.authority():
            arguments += ["--secret", f"id=ca,src={bundle}"]
        where = ["--file", str(context / "deploy" / "Dockerfile"), "--target", target, "--tag", tag, str(context)]
        self.docker("build", "--quiet", *arguments, *where, timeout_s=BUILD_S)
