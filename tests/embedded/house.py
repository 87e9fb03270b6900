"""A Parley of real models: Valkey, the four services as they ship, and two gateways. One for the whole test run."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from parley.models.fetch import list_models
from parley.supervisor.plan import STAGE_SERVICES, THREADS
from tests.support.process import ROOT, Child
from tests.support.valkey import ValkeyProcess

FETCH_TIMEOUT_S = 600
OFFERED_TIMEOUT_S = 20.0
SEED = {"PARLEY_TALKER_SEED": "the house"}
"""A reply sounds the same each time that it is made."""
PATIENT = {
    "PARLEY_REDIS_TIMEOUT_MS": "10000",
    "PARLEY_REPLICA_TTL_MS": "60000",
    "PARLEY_PULSE_TIMEOUT_MS": "20000",
    "PARLEY_OPEN_TIMEOUT_MS": "20000",
    "PARLEY_STALL_TIMEOUT_MS": "20000",
    "PARLEY_FIRST_OUTPUT_TIMEOUT_MS": "30000",
    "PARLEY_TRANSCRIPT_TIMEOUT_MS": "30000",
    "PARLEY_TURN_SCORE_WALL_MS": "10000",
}
"""Deadlines by the wall clock: a test machine that stalls has lost no process. What loses one is tested elsewhere."""


class EmbeddedHouse:
    """As `make run` starts it, with addresses of the system's choice, more patience, and a second gateway beside the first."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._valkey = ValkeyProcess()
        private = {"PARLEY_BIND": "127.0.0.1:0", "PARLEY_DRAIN_S": "1", **SEED}
        self._services = [self._child(name, module, private) for name, module in STAGE_SERVICES.items()]
        self._gateways = [self._child(name, "gateway", {"PARLEY_DRAIN_TIMEOUT_MS": "500"}) for name in ("gateway", "gateway-2")]

    def _child(self, name: str, module: str, env: dict[str, str]) -> Child:
        shared = {**THREADS, **PATIENT, "PARLEY_REDIS_URL": self._valkey.url, "PARLEY_HTTP_BIND": "127.0.0.1:0"}
        return Child(name, ["-m", module], {**shared, **env}, self._folder)

    def start(self) -> None:
        """Returns when a conversation can be opened at either gateway. Raises RuntimeError with the end of a log."""
        try:
            self._valkey.start()
            for child in self.children:
                child.start()
            for child in self.children:
                child.wait_ready()
            self._wait_offered()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        for together in (self._gateways, self._services):
            for child in together:
                child.ask_to_stop()
            for child in together:
                child.stop()
        self._valkey.stop()

    def kill_gateway(self) -> None:
        """SIGKILL of the first; the second has its conversations then."""
        self._gateways[0].kill()

    def restart_gateway(self) -> None:
        """After `kill_gateway`: returns when conversations can be opened there again."""
        self._gateways[0].start()
        self._gateways[0].wait_ready()
        self._wait_offered()

    @property
    def children(self) -> list[Child]:
        return [*self._services, *self._gateways]

    def _wait_offered(self) -> None:
        deadline = time.monotonic() + OFFERED_TIMEOUT_S
        for url in self.realtimes:
            self._wait_offered_at(url, deadline)

    def _wait_offered_at(self, url: str, deadline: float) -> None:
        while True:
            try:
                with connect(url, open_timeout=OFFERED_TIMEOUT_S):
                    return
            except InvalidStatus:
                if time.monotonic() > deadline:
                    raise RuntimeError("the stages did not register") from None
                time.sleep(0.05)

    @property
    def http(self) -> str:
        return f"http://{self._gateways[0].ready['http']}"

    @property
    def websocket(self) -> str:
        """Base URL as the openai client wants it."""
        return f"ws://{self._gateways[0].ready['http']}/v1"

    @property
    def realtimes(self) -> tuple[str, str]:
        """Where each gateway is talked to."""
        first, second = (f"ws://{each.ready['http']}/v1/realtime" for each in self._gateways)
        return first, second

    def get(self, path: str) -> tuple[int, Mapping[str, str], bytes]:
        """(status, headers, body) of an HTTP GET."""
        answer = httpx.get(self.http + path, timeout=10)
        return answer.status_code, answer.headers, answer.content

    def logs(self) -> dict[str, str]:
        """The end of each process's log."""
        return {child.name: child.tail() for child in self.children}


def fetch_models() -> None:
    """Fills the cache with what it lacks. Raises RuntimeError with the command's last words."""
    if all(model.present for model in list_models()):
        return
    done = subprocess.run(
        [sys.executable, "-m", "parley.models", "fetch"], cwd=ROOT, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"the models did not come: {done.stderr.strip()[-500:]}")


class Shared:
    """The house that the folders of tests share: started by the first that needs it, stopped by the last."""

    house: EmbeddedHouse | None = None
    users = 0


@contextmanager
def shared_house(folder: Path) -> Iterator[EmbeddedHouse]:
    """Starts the house in `folder`, unless it runs already. Tests leave it as they found it."""
    house = Shared.house
    if house is None:
        fetch_models()
        house = EmbeddedHouse(folder)
        house.start()
        Shared.house = house
    Shared.users += 1
    try:
        yield house
    finally:
        Shared.users -= 1
        if Shared.users == 0:
            Shared.house = None
            house.stop()
