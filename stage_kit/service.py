"""A stage service as a process: load, serve, drain, leave."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import uvloop
from parley_stage.v1 import stage_pb2_grpc

from session_store.garbage import keep_for_good
from session_store.loop_lag import watch_loop
from stage_kit import logs
from stage_kit.engine import Engine, RemoteEngine
from stage_kit.health import Health
from stage_kit.host import Host
from stage_kit.http import HttpServer
from stage_kit.logs import describe, logger
from stage_kit.loop import EngineLoop
from stage_kit.metrics import Metrics
from stage_kit.registration import Registration
from stage_kit.server import StageServicer, build_server, listen
from stage_kit.settings import Settings

TIDY_S = 0.5
SWITCH_S = 0.0005
"""How long a thread may keep another from running Python: an engine's thread comes back from its device hundreds of times a second."""
JOIN_S = 2.0
"""How long a step in progress may take when the service ends."""
STOP_GRACE_S = 1.0


class Service:
    """All of one replica. Runs in any event loop: `start`, then `drain`, then `stop`."""

    def __init__(
        self, service: str, engines: Sequence[Engine | RemoteEngine], settings: Settings, loaded: Callable[[], None] = lambda: None
    ) -> None:
        """`loaded` is called once all engines are, before the first session may come."""
        self.service = service
        self._loaded = loaded
        self.settings = settings
        self.replica_id = f"{service}-{secrets.token_hex(6)}"
        self.metrics = Metrics()
        self.metrics.runs(service)
        self.health = Health()
        self.hosts = {engine.card.stage: Host(engine, settings, self.metrics) for engine in engines}
        if len(self.hosts) != len(engines):
            raise ValueError("two engines serve the same stage")
        self.address = ""
        self.http: HttpServer | None = None
        self._server = build_server(settings)
        self._registration: Registration | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._log = logger(replica_id=self.replica_id)

    async def start(self) -> None:
        """Returns when the replica is ready. Raises what an engine's load raised, and OSError for a taken address."""
        self.address = listen(self._server, self.settings)
        self.http = HttpServer(self.settings.http_bind, self.metrics.registry, self.health.serving)
        self.health.register(self._server)
        servicer = StageServicer(self.service, self.replica_id, self.hosts, self.settings)
        stage_pb2_grpc.add_StageServicer_to_server(servicer, self._server)  # type: ignore[no-untyped-call]
        await self.health.set(startup=False, ready=False, live=True)
        await asyncio.gather(*(host.runner.start() for host in self.hosts.values()))
        self._loaded()
        await self._server.start()
        if redis_url := self.settings.redis_url.get_secret_value():
            advertised = self.settings.advertise or self.address
            self._registration = Registration(
                redis_url, self.service, self.replica_id, advertised, self.hosts, self.settings.heartbeat_s, self.metrics.registered
            )
            self._keep(self._registration.run())
        self._keep(self._tidy())
        self._keep(watch_loop(self.metrics.loop_lag.observe, time.monotonic))
        for host in self.hosts.values():
            if isinstance(host.runner, EngineLoop) and host.runner.died is not None:
                host.runner.died.add_done_callback(self._engine_died)
        self.metrics.loaded.set(1)
        await self.health.set(startup=True, ready=True)
        self._write_ready_file()
        self._log.info("ready", grpc=self.address, http=self.http.address, stages=sorted(self.hosts))

    async def failed(self) -> None:
        """Waits for a fault that the replica cannot survive, and raises it."""
        await self._failure

    async def drain(self) -> None:
        """Takes no new sessions, says so, and waits for the present ones up to settings.drain_s."""
        for host in self.hosts.values():
            host.draining = True
        await self.health.set(ready=False)
        if self._registration is not None:
            await self._registration.beat()
        self._log.info("draining", sessions=sum(len(host) for host in self.hosts.values()))
        try:
            async with asyncio.timeout(self.settings.drain_s):
                while held := [session for host in self.hosts.values() for session in host.held()]:
                    await asyncio.wait([session.ended for session in held])
        except TimeoutError:
            self._log.warning("drain ended by its limit", sessions=sum(len(host) for host in self.hosts.values()))

    async def stop(self) -> None:
        """Leaves the registry and ends every stream."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._registration is not None:
            await self._registration.leave()
        await self.health.set(live=False, ready=False)
        await self._server.stop(STOP_GRACE_S)
        for host in self.hosts.values():
            host.runner.stop()
        # a thread that is still in a library when the interpreter ends aborts the process
        await asyncio.gather(*(asyncio.to_thread(host.runner.join, JOIN_S) for host in self.hosts.values()))
        if self.http is not None:
            await asyncio.to_thread(self.http.stop)
        if self.settings.ready_file is not None:
            self.settings.ready_file.unlink(missing_ok=True)

    async def _tidy(self) -> None:
        async def nobody(_: str) -> bool:
            return False

        lives = self._registration.lives if self._registration is not None else nobody
        while True:
            await asyncio.sleep(min(TIDY_S, self.settings.detached_ttl_s / 4))
            for host in self.hosts.values():
                await host.tidy(lives)
            stuck_ms = self.settings.stuck_s * 1000
            await self.health.set(live=all(host.runner.age_ms() < stuck_ms for host in self.hosts.values()))

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self._task_ended)
        self._tasks.append(task)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self._failure.done():
            self._failure.set_exception(error)

    def _engine_died(self, died: asyncio.Future[None]) -> None:
        if not died.cancelled() and (error := died.exception()) is not None and not self._failure.done():
            self._failure.set_exception(error)

    def _write_ready_file(self) -> None:
        if self.settings.ready_file is None or self.http is None:
            return
        ready = {"grpc": self.settings.advertise or self.address, "http": self.http.address, "pid": os.getpid()}
        partial = self.settings.ready_file.with_suffix(".partial")
        partial.write_text(json.dumps(ready))
        # readers wait for the name, so the file must be whole when it appears
        partial.rename(self.settings.ready_file)


async def _run(service: str, engines: Sequence[Engine | RemoteEngine], settings: Settings) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    replica = Service(service, engines, settings, keep_for_good)

    def on_signal() -> None:
        if stopping.is_set():
            # asked twice: the operator does not want to wait
            drained.cancel()
        stopping.set()

    async def serve_until_stopped() -> None:
        await replica.start()
        await stopping.wait()
        await replica.drain()

    drained = asyncio.create_task(serve_until_stopped())
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, on_signal)
    failed = asyncio.create_task(replica.failed())
    stopped = asyncio.create_task(_stopped_while_loading(stopping, replica))
    try:
        done, _ = await asyncio.wait({drained, failed, stopped}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if not task.cancelled():
                task.result()
    finally:
        for task in (drained, failed, stopped):
            task.cancel()
        await asyncio.gather(drained, failed, stopped, return_exceptions=True)
        await replica.stop()


async def _stopped_while_loading(stopping: asyncio.Event, replica: Service) -> None:
    await stopping.wait()
    if replica.health.serving("startup"):
        await asyncio.Event().wait()


def serve(*, service: str, engines: Sequence[Engine | RemoteEngine], settings: Settings | None = None) -> None:
    """Runs a service until SIGTERM or SIGINT and its drain, then returns. Raises SystemExit(1) after one line when it cannot go on."""
    settings = settings or Settings()
    logs.configure(settings.log_level, service)
    try:
        sys.setswitchinterval(SWITCH_S)
        uvloop.run(_run(service, engines, settings))
    except Exception as error:
        reason = str(error) if isinstance(error, OSError | ValueError) else describe(error)
        logger().error("service failed", error=describe(error))
        print(f"{service}: {reason}", file=sys.stderr)
        raise SystemExit(1) from None
