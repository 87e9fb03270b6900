"""A whole Parley of real processes: Valkey, scripted services, a gateway; and eyes on what it holds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import grpc
from parley_stage.v1 import stage_pb2, stage_pb2_grpc

from session_store import Store, StoreSettings
from tests.support.process import Child
from tests.support.valkey import ValkeyProcess

STAGES = ("turn", "asr", "llm", "talker", "vocoder")
SERVICES = ("vad", "thinker", "talker", "vocoder")
REGISTER_TIMEOUT_S = 60.0
MUTE_MS = 1500
SHORT = {
    "PARLEY_REPLICA_TTL_MS": "2000",
    "PARLEY_ORPHAN_AFTER_MS": "500",
    "PARLEY_MUTE_MS": str(MUTE_MS),
    "PARLEY_GATEWAY_BEAT_S": "0.3",
}
"""Deadlines of the store that tests would otherwise wait for."""
T = TypeVar("T")


class House:
    """`services` are started as processes of their own; ("all",) is one process with every stage.

    `stages`: all that must be there before anybody is let in. With `replicas` above 1 there are as many of each service, the second named
    "vad-2" and so on; `gateways` as many gateways. A service may also be the name of one stage. `store_url`: of a store that is there
    already, instead of a Valkey of its own.
    """

    def __init__(
        self,
        folder: Path,
        *,
        gateway: Mapping[str, str] | None = None,
        service_env: Mapping[str, Mapping[str, str]] | None = None,
        services: tuple[str, ...] = SERVICES,
        slots: int = 64,
        gateways: int = 1,
        replicas: int = 1,
        stages: tuple[str, ...] = STAGES,
        store_url: str = "",
    ) -> None:
        self.stages = stages
        self.folder, self.faults, self.accounts = folder, folder / "faults", folder / "accounts"
        for each in (folder, self.faults, self.accounts):
            each.mkdir(parents=True, exist_ok=True)
        self.valkey = ValkeyProcess()
        self.store_url = store_url or self.valkey.url
        self._slots, self._service_env = slots, service_env or {}
        self._gateway_env = {"PARLEY_HTTP_BIND": "127.0.0.1:0", **(gateway or {})}
        self.services: dict[str, Child] = {
            child.name: child for number in range(1, replicas + 1) for child in (self._service(name, number) for name in services)
        }
        self.gateways = [self._gateway(number) for number in range(1, gateways + 1)]

    @property
    def gateway(self) -> Child:
        """The first, or the only one."""
        return self.gateways[0]

    def _service(self, service: str, number: int) -> Child:
        env = {
            "PARLEY_REDIS_URL": self.store_url,
            "PARLEY_HEARTBEAT_S": "0.2",
            **SHORT,
            "PARLEY_DRAIN_S": "1",
            "PARLEY_TEST_FAULTS": str(self.faults),
            "PARLEY_TEST_ACCOUNTS": str(self.accounts),
            **self._service_env.get(service, {}),
        }
        command = ["-m", "tests.support.scripted_service", "--service", service, "--slots", str(self._slots)]
        return Child(_numbered(service, number), command, env, self.folder, forked=True)

    def _gateway(self, number: int) -> Child:
        env = {"PARLEY_REDIS_URL": self.store_url, **SHORT, **self._gateway_env}
        return Child(_numbered("gateway", number), ["-m", "gateway"], env, self.folder, forked=True)

    def start(self) -> House:
        """Returns when every stage is registered and the gateway serves."""
        if self.store_url == self.valkey.url:
            self.valkey.start()
        children = [*self.services.values(), *self.gateways]
        try:
            for child in children:
                child.start()
            for child in children:
                child.wait_ready()
            self.wait_registered()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        children = [*self.gateways, *self.services.values()]
        for child in children:
            child.ask_to_stop()
        for child in children:
            child.stop()
        self.valkey.stop()

    def restart_gateway(self, number: int = 1, **env: str) -> None:
        """A new gateway, perhaps with settings of its own; the old one has ended."""
        gateway = self.gateways[number - 1]
        gateway.start(env)
        gateway.wait_ready()

    def restart_service(self, name: str) -> None:
        """A new replica; the old one has ended."""
        self.services[name].start()
        self.services[name].wait_ready()
        self.wait_registered()

    def wait_registered(self) -> None:
        """Until every present process is a live replica, and each stage has one."""
        present = {child.ready["grpc"] for child in self.services.values() if child.process.poll() is None}
        deadline = time.monotonic() + REGISTER_TIMEOUT_S
        while time.monotonic() < deadline:
            replicas = [replica for replica in run(self._replicas()) if replica.address in present]
            served = {stage.stage for replica in replicas for stage in replica.stages}
            if served >= set(self.stages) and {replica.address for replica in replicas} == present:
                return
            time.sleep(0.02)
        raise RuntimeError("the services did not register")

    async def records(self, *session_ids: str) -> list[str]:
        """State of each session's record in the store. Raises SessionMissing."""
        async with await Store.open(self.store_url, StoreSettings(redis_timeout_ms=5000)) as store:
            return [(await store.records.load(session_id)).record.state for session_id in session_ids]

    async def _replicas(self) -> list[Any]:
        async with await Store.open(self.store_url, StoreSettings(redis_timeout_ms=5000)) as store:
            return await store.registry.replicas()

    # addresses

    @property
    def http(self) -> str:
        return f"http://{self.gateway.ready['http']}"

    @property
    def websocket(self) -> str:
        """Base URL as the openai client wants it."""
        return f"ws://{self.gateway.ready['http']}/v1"

    @property
    def realtime(self) -> str:
        return f"{self.websocket}/realtime"

    @property
    def realtimes(self) -> list[str]:
        """Where each gateway that runs may be talked to."""
        return [f"ws://{each.ready['http']}/v1/realtime" for each in self.gateways if each.ready and each.process.poll() is None]

    def get(self, path: str) -> tuple[int, Mapping[str, str], bytes]:
        """(status, headers, body) of an HTTP GET."""
        try:
            with urllib.request.urlopen(self.http + path, timeout=30) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()

    def metric(self, name: str, **labels: str) -> float:
        """Value of the gateway's metric; 0.0 when it has none such."""
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        for line in self.get("/metrics")[2].decode().splitlines():
            head, _, value = line.rpartition(" ")
            found, _, rest = head.partition("{")
            if found == name and wanted <= set(rest.rstrip("}").split(",")):
                return float(value)
        return 0.0

    @contextlib.contextmanager
    def fault(self, name: str) -> Iterator[None]:
        """The named fault is on while inside, or until it strikes; see scripted_service."""
        (self.faults / name).touch()
        try:
            yield
        finally:
            (self.faults / name).unlink(missing_ok=True)

    # audits

    async def used(self) -> dict[str, int]:
        """Slots of each stage that admission counts as taken."""
        taken = dict.fromkeys(self.stages, 0)
        for replica in await self._replicas():
            for stage in replica.stages:
                taken[stage.stage] += stage.used
        return taken

    async def held(self, *names: str) -> list[tuple[str, str]]:
        """(stage, session) that these services, or all, themselves say they hold."""
        found = []
        for child in self.services.values():
            if child.process.poll() is not None or (names and child.name not in names):
                continue
            async with grpc.aio.insecure_channel(child.ready["grpc"]) as channel:
                answer = await stage_pb2_grpc.StageStub(channel).Inspect(stage_pb2.InspectRequest(), timeout=30)
                found += [(session.stage, session.session_id) for session in answer.sessions]
        return found

    async def wait_free(self, timeout_s: float = 30.0) -> float:
        """Until no stage holds anything and no slot is taken; returns how long it took in seconds. Raises AssertionError."""
        started = time.monotonic()
        while True:
            held, used = await self.held(), await self.used()
            if not held and not any(used.values()):
                return time.monotonic() - started
            assert time.monotonic() - started < timeout_s, f"not freed: held {held}, used {used}"
            await asyncio.sleep(0.02)

    async def wait_free_but(self, session_id: str, timeout_s: float = 30.0) -> bool:
        """Until this session alone is held, at every stage. Raises TimeoutError."""
        wanted = {(stage, session_id) for stage in self.stages}
        async with asyncio.timeout(timeout_s):
            while True:
                if set(await self.held()) == wanted:
                    return True
                await asyncio.sleep(0.02)

    def logs(self) -> dict[str, str]:
        """The end of each process's log."""
        return {child.name: child.tail() for child in (*self.services.values(), *self.gateways)}

    def log_lines(self) -> list[dict[str, Any]]:
        """What the gateway logged, as far as it is JSON."""
        lines = []
        for line in self.gateway.log.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                lines.append(json.loads(line))
        return lines


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-{number}"


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs it in a loop of its own, whether or not the caller is in one."""
    outcome: list[T] = []
    failure: list[BaseException] = []

    def body() -> None:
        try:
            outcome.append(asyncio.run(work))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]
