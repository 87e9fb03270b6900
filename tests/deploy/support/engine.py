"""A container engine of the tests' own, in a private folder; nothing of it is left afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from filelock import FileLock, Timeout

from . import firewall, packages
from .firewall import Firewall
from .shell import Failed, run

DOCKER = "/usr/bin/docker"
ROOT = Path(__file__).parents[3]
BASE = "local/debian:bookworm"
START_S = 60.0
STOP_S = 60.0
BUILD_S = 600.0
POLL_S = 0.1


class Engine:
    """`dockerd` on a socket of its own. env: of programs that are to talk to it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="parley-deploy-", dir="/var/tmp"))
        socket = f"unix://{self.folder / 'docker.sock'}"
        self.env = {**os.environ, "DOCKER_HOST": socket, "DOCKER_BUILDKIT": "1", "DOCKER_CONFIG": str(self.folder / "client")}
        self._socket = socket
        self._alone = FileLock("/var/tmp/.parley-deploy.lock")
        self._firewall: Firewall | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers. Raises NotHere where another engine runs, or another of these: both would write the same rules."""
        packages.install()
        try:
            self._alone.acquire(timeout=0)
        except Timeout:
            raise packages.NotHere("another run of these tests has an engine on this machine") from None
        if firewall.is_engines():
            raise packages.NotHere(
                "another container engine uses this machine's firewall; these tests start their own, where there is none"
            )
        self._firewall = Firewall()
        folders = [
            "--data-root",
            str(self.folder / "data"),
            "--exec-root",
            str(self.folder / "exec"),
            "--pidfile",
            str(self.folder / "pid"),
        ]
        with (self.folder / "dockerd.log").open("wb") as log:
            command = ["/usr/sbin/dockerd", *folders, "--host", self._socket]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0)
        until = time.monotonic() + START_S
        while True:
            with contextlib.suppress(Failed):
                self.docker("version")
                return
            if self._process.poll() is not None or time.monotonic() > until:
                said = (self.folder / "dockerd.log").read_text(errors="replace")[-2000:]
                raise packages.NotHere(f"the container engine does not start here: {said}")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Ends it with all its containers, removes its folder, and puts the machine's network back."""
        with contextlib.suppress(Failed):
            if containers := self.docker("ps", "--all", "--quiet").split():
                self.docker("rm", "--force", "--volumes", *containers)
            self.docker("network", "prune", "--force")
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._firewall is not None:
            self._firewall.restore()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._alone.release()

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
