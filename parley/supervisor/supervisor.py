"""Starts the processes of a plan, restarts what dies, stops everything."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import deque
from collections.abc import Coroutine, Iterable
from typing import Any, Protocol

import msgspec

from .child import Child
from .errors import MissingBinary, NotReady, ServiceDied, ServiceLost, SupervisorError
from .folder import RunFolder
from .plan import Plan, ServiceSpec, SharedCard
from .ready import Ready
from .settings import SupervisorSettings

DAEMON_GRACE_S = 0.6
"""A daemon's keeper ends within mps_stop_s and so much."""


class Reporter(Protocol):
    """Is told what happens, for people."""

    def starting(self, name: str) -> None: ...

    def ready(self, name: str, took_s: float) -> None: ...

    def note(self, line: str) -> None:
        """Good to know."""

    def notice(self, line: str) -> None:
        """Not as it should be."""


class Supervisor:
    """start(), then watch() until somebody asks for stop(). All three run on the main thread's event loop."""

    def __init__(self, plan: Plan, folder: RunFolder, settings: SupervisorSettings, reporter: Reporter) -> None:
        self._plan, self._folder, self._settings, self._reporter = plan, folder, settings, reporter
        self._children: dict[str, Child] = {}
        self._serving: dict[str, asyncio.Event] = {}
        self._hurry = asyncio.Event()

    @property
    def pids(self) -> dict[str, int]:
        """Of everything that was started and not yet stopped, by name."""
        return {name: child.pid for name, child in self._children.items()}

    def told_by(self, name: str) -> Ready | None:
        """What the named process wrote when it became ready."""
        child = self._children.get(name)
        return child.ready if child else None

    async def start(self) -> None:
        """Starts the store, then the daemons of shared cards, then all others at once, and waits until each is ready.

        A card without its daemon is shared by time slices, and that is said. Raises ServiceDied, NotReady or MissingBinary at the first
        other failure; stop() is still needed then.
        """
        for line in self._plan.said:
            self._reporter.note(line)
        for line in self._plan.warnings:
            self._reporter.notice(line)
        await self._start_together([self._plan.store])
        for card in self._plan.cards:
            await self._share(card)
        await self._start_together([*self._plan.services, self._plan.gateway])

    async def watch(self) -> None:
        """Restarts what dies, and says so. Never returns; raises ServiceLost when one died more often than it may."""
        await _first_failure(self._keep_alive(spec) for spec in self._plan)

    def hurry(self) -> None:
        """Cuts a running stop() short: what still lives is killed now."""
        self._hurry.set()

    async def stop(self) -> None:
        """Ends all processes: gateway, services, store, then the daemons of shared cards; kills what is left after stop_kill_s.

        Nothing of them is left when it returns.
        """
        settings, begun = self._settings, time.monotonic()
        gateway, store = self._plan.gateway.name, self._plan.store.name
        daemons = {card.daemon.name for card in self._plan.cards}
        alive = {name: child for name, child in self._children.items() if child.exit_code is None and name not in daemons}
        is_gateway, is_store = [[child for name, child in alive.items() if name == wanted] for wanted in (gateway, store)]
        services = [child for name, child in alive.items() if name not in (gateway, store)]
        everything = list(alive.values())
        waves = (
            (is_gateway, is_gateway, settings.stop_gateway_s),
            (services, services, settings.stop_services_s),
            (is_store, everything, settings.stop_kill_s),
        )
        for told, awaited, until_s in waves:
            for child in told:
                child.signal(signal.SIGTERM)
            await self._exits(awaited, begun + min(until_s, settings.stop_kill_s))
        for child in alive.values():
            if child.exit_code is None:
                self._reporter.notice(f"{child.name} did not stop by itself and was killed")
                child.signal(signal.SIGKILL)
        await asyncio.gather(*(child.exited() for name, child in self._children.items() if name not in daemons))
        await asyncio.gather(*(self._put_down(child) for name, child in self._children.items() if name in daemons))
        self._children.clear()

    async def _put_down(self, daemon: Child) -> None:
        """Those that used it are gone. It is given the time that it needs: killed, it would leave processes behind."""
        daemon.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(self._settings.mps_stop_s + DAEMON_GRACE_S):
                await daemon.exited()
        except TimeoutError:
            self._reporter.notice(f"{daemon.name} did not stop by itself and was killed")
            daemon.signal(signal.SIGKILL)
            await daemon.exited()

    async def _exits(self, children: list[Child], until: float) -> None:
        if not children:
            return
        exits = asyncio.gather(*(child.exited() for child in children))
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait((exits, hurry), timeout=max(until - time.monotonic(), 0.0), return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        exits.cancel()
        await asyncio.gather(exits, hurry, return_exceptions=True)

    async def _share(self, card: SharedCard) -> None:
        self._reporter.starting(card.daemon.name)
        self._serving[card.daemon.name] = asyncio.Event()
        try:
            await self._start_one(card.daemon)
        except SupervisorError as error:
            if card.daemon.name in self._children:
                await self._put_down(self._children[card.daemon.name])
                del self._children[card.daemon.name]
            self._reporter.notice(f"{card.otherwise}: {error}")
            self._plan = self._plan.without(card)
        else:
            self._reporter.note(card.said)
            self._plan = self._plan.sharing(card)

    async def _start_together(self, specs: list[ServiceSpec]) -> None:
        for spec in specs:
            self._reporter.starting(spec.name)
        await _first_failure(self._start_one(spec) for spec in specs)

    async def _start_one(self, spec: ServiceSpec) -> None:
        try:
            child = await Child.spawn(spec, self._folder)
        except OSError as error:
            raise MissingBinary(f"cannot start {spec.name}: {error.strerror or error}") from error
        self._children[spec.name] = child
        self._folder.pid_file.write_bytes(msgspec.json.encode(self.pids))
        timeout_s = self._settings.start_timeout_s
        while child.ready is None:
            if child.exit_code is not None:
                raise ServiceDied(spec.name, child.how_it_ended(), child.log)
            if time.monotonic() - child.started > timeout_s:
                raise NotReady(spec.name, f"{spec.name} was not ready within {timeout_s:g} s", child.log)
            await asyncio.sleep(self._settings.poll_interval_s)
        self._reporter.ready(spec.name, time.monotonic() - child.started)
        if serving := self._serving.get(spec.name):
            serving.set()

    async def _keep_alive(self, spec: ServiceSpec) -> None:
        settings, restarts = self._settings, deque[float]()
        while True:
            child = self._children[spec.name]
            await child.exited()
            now = time.monotonic()
            while restarts and now - restarts[0] > settings.restart_window_s:
                restarts.popleft()
            ended = child.how_it_ended()
            self._end_clients(spec)
            if len(restarts) >= settings.max_restarts:
                raise ServiceLost(spec.name, f"{ended}; it was restarted {len(restarts)} times already", child.log)
            wait_s = min(settings.restart_backoff_s * 2 ** len(restarts), settings.restart_backoff_max_s)
            restarts.append(now)
            again = f"restarting in {wait_s:g} s, {len(restarts)} of {settings.max_restarts}"
            self._reporter.notice(f"{ended}; {again} (log: {child.log})")
            await asyncio.sleep(wait_s)
            await self._start_again(spec)

    def _end_clients(self, daemon: ServiceSpec) -> None:
        """Who shares a card through a daemon cannot go on without it; a fault of the card is over when all have left."""
        for card in self._plan.cards:
            if card.daemon is daemon:
                self._serving[daemon.name].clear()
                for name in card.services:
                    self._children[name].signal(signal.SIGKILL)

    async def _start_again(self, spec: ServiceSpec) -> None:
        if daemon := self._plan.daemon_of(spec.name):
            await self._serving[daemon.name].wait()
        try:
            await self._start_one(spec)
        except ServiceDied:
            return  # the next round says how it ended
        except NotReady as error:
            self._reporter.notice(str(error))
            self._children[spec.name].signal(signal.SIGKILL)


async def _first_failure(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs all at once; the first failure cancels the others and is raised alone."""
    try:
        async with asyncio.TaskGroup() as group:
            for coroutine in work:
                group.create_task(coroutine)
    except BaseExceptionGroup as failures:
        found = failures.subgroup(SupervisorError)
        if found is None:
            raise
        raise found.exceptions[0] from None
