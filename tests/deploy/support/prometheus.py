"""A real Prometheus with the rules that are shipped, and what it answers."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support.process import ROOT
from tests.support.proxy import free_port

from .packages import add

RULES = ROOT / "deploy" / "prometheus"
START_S = 30.0
EVERY = "1s"


def install() -> None:
    """prometheus and promtool are there. Raises NotHere."""
    if shutil.which("promtool") and shutil.which("prometheus"):
        return
    add("prometheus")


class Prometheus:
    """Scrapes `targets` (addresses by job) every second, and evaluates the rules as often."""

    def __init__(self, folder: Path, targets: Mapping[str, Iterable[str]]) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._address = f"127.0.0.1:{free_port()}"
        jobs = [{"job_name": job, "static_configs": [{"targets": list(addresses)}]} for job, addresses in targets.items()]
        config = {
            "global": {"scrape_interval": EVERY, "scrape_timeout": EVERY, "evaluation_interval": EVERY},
            "rule_files": [str(RULES / name) for name in ("rules.yml", "alerts.yml")],
            "scrape_configs": jobs,
        }
        self._config = folder / "prometheus.yml"
        self._config.write_text(yaml.safe_dump(config))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers. Raises RuntimeError with the end of its log."""
        command = [
            *("prometheus", f"--config.file={self._config}", f"--storage.tsdb.path={self._folder / 'data'}"),
            f"--web.listen-address={self._address}",
        ]
        log = self._folder / "prometheus.log"
        with log.open("wb") as file:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        deadline = time.monotonic() + START_S
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"prometheus did not start: {log.read_text()[-2000:]}")
            time.sleep(0.1)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(20)

    def _ready(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=2) as answer:
            return bool(answer.status == 200)
        return False

    def get(self, path: str, **query: str) -> Any:
        """The data of an answer of its API. Raises HTTPError for a query that does not parse."""
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> dict[str, float]:
        """Values by labels, as of now."""
        found = self.get("query", query=expression)["result"]
        return {json.dumps(each["metric"], sort_keys=True): float(each["value"][1]) for each in found}

    def series(self, matcher: str) -> list[dict[str, str]]:
        """The labels of all series that match."""
        found: list[dict[str, str]] = self.get("series", **{"match[]": matcher})
        return found

    def targets(self) -> dict[str, str]:
        """By scrape address: "", or what went wrong."""
        return {each["scrapeUrl"]: each["lastError"] for each in self.get("targets")["activeTargets"]}
