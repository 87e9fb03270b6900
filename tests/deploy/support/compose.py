"""docker compose: the real program, out of a wheel."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .engine import Engine
from .packages import authority
from .shell import run

ROOT = Path(__file__).parents[3]
PROGRAM = Path(sys.executable).with_name("docker-compose")
TRUTH = ROOT / "docker-compose.yml"
CPU = ROOT / "docker-compose.cpu.yml"
SETTINGS = ("PARLEY_", "COMPOSE_", "DOCKER_")
PROJECT = "parley-test"


def resolved(*arguments: str, settings: dict[str, str] | None = None) -> dict[str, Any]:
    """What compose makes of its files and settings. Raises Failed for what it refuses."""
    return dict(json.loads(run(PROGRAM, *arguments, "config", "--format", "json", cwd=ROOT, env=environment(settings))))


def environment(settings: dict[str, str] | None = None) -> dict[str, str]:
    """The machine's, without anybody's own settings of compose."""
    return {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)} | (settings or {})


class Project:
    """The embedded profile, on images that were built before. port: where it is reached on this machine.

    files, settings: beside what it always has.
    """

    def __init__(
        self, engine: Engine, port: int, drain_s: int, files: Iterable[Path] = (), settings: Mapping[str, str] | None = None
    ) -> None:
        self.engine, self.port = engine, port
        self._env = environment({"PARLEY_LISTEN": f"127.0.0.1:{port}", "PARLEY_DRAIN_S": str(drain_s), **(settings or {})})
        self._env |= {name: engine.env[name] for name in ("DOCKER_HOST", "DOCKER_CONFIG")}
        self._files = [TRUTH, CPU, *files, _with_authority(engine.folder)]

    def up(self) -> None:
        """Returns when all of it is healthy."""
        self("up", "--detach", "--no-build", "--wait", "--wait-timeout", "240", timeout_s=300)

    def __call__(self, *arguments: str, timeout_s: float = 120.0) -> str:
        files = [word for file in self._files for word in ("--file", str(file))]
        command = (str(PROGRAM), *files, "--project-directory", str(ROOT), "--project-name", PROJECT, "--profile", "embedded")
        return run(*command, *arguments, cwd=ROOT, env=self._env, timeout_s=timeout_s)

    def containers(self, service: str) -> list[str]:
        """Ids, also of those that do not run."""
        return self("ps", "--all", "--quiet", service).split()

    def inspect(self, container: str) -> dict[str, Any]:
        """All that the engine knows of it."""
        return dict(json.loads(self.engine.docker("inspect", container))[0])

    def address(self, container: str) -> str:
        """In the network that is closed to the world; the machine that it is on reaches it."""
        networks = self.inspect(container)["NetworkSettings"]["Networks"]
        return str(networks[f"{PROJECT}_inside"]["IPAddress"])


def _with_authority(folder: Path) -> Path:
    """An override that lets models be fetched through this machine's authority."""
    bundle, file = authority(), folder / "authority.yml"
    models = {"environment": {"PIP_CERT": "/run/ca.pem"}, "volumes": [f"{bundle}:/run/ca.pem:ro"]} if bundle else {}
    file.write_text(json.dumps({"services": {"models": models}}))
    return file
