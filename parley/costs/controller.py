"""Rounds: look at all pods, ask each, write the costs whose step changed. Nothing that the API says ends it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import signal
import sys
import time
from pathlib import Path

import msgspec
import structlog

from .asking import asked
from .cluster import ACCOUNT, PAGE, Cluster, Pod, Refused, entered
from .reading import cost

ROUND_S = 120.0
LONGEST_PAUSE_S = 300.0
MOST_WRITES = 50
"""In a round; what is furthest from the truth goes first."""
OF_ONE_POD = (403, 404, 409, 422)
"""It is gone, was written to by somebody else, or somebody keeps its annotations: others may do all the same."""
_log = structlog.get_logger()


class Options(msgspec.Struct, frozen=True):
    """selector: labels of the pods. api: URL. account: folder with token, namespace and ca.crt. alive: see Controller.run."""

    selector: str
    api: str
    account: Path = ACCOUNT
    every_s: float = 30.0
    step: int = 4
    page: int = PAGE
    alive: Path | None = None


def pause_s(every_s: float, failures: int, retry_after_s: float | None, chance: float) -> float:
    """Seconds between two rounds, a tenth more or less by `chance` (0 to 1); twice as long after each failure, as far as five minutes."""
    longest = max(every_s, LONGEST_PAUSE_S)
    pause = min(every_s * 2.0 ** min(failures, 16), longest) * (0.9 + 0.2 * chance)
    return max(pause, min(retry_after_s or 0.0, longest))


class Controller:
    """Of one release."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._failures = 0
        self._mute: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Until it is cancelled. `alive` holds the second (since 1970) until which it may be silent: past that it hangs."""
        while True:
            self._promise(ROUND_S)
            pause = await self.round()
            self._promise(pause + ROUND_S)
            await asyncio.sleep(pause)

    async def round(self) -> float:
        """Once. Returns the seconds until the next."""
        options, refused = self._options, None
        try:
            async with asyncio.timeout(ROUND_S), entered(options.api, options.account) as cluster:
                await self._keep(cluster)
        except TimeoutError:
            refused = Refused("the round took too long")
        except Refused as error:
            refused = error
        if refused is None and self._failures:
            _log.info("costs are kept again", failures=self._failures)
        self._failures = self._failures + 1 if refused else 0
        pause = pause_s(options.every_s, self._failures, refused.retry_after_s if refused else None, random.random())
        if refused:
            _log.warning("costs not kept", why=str(refused), code=refused.code, failures=self._failures, again_in_s=round(pause, 1))
        return pause

    async def _keep(self, cluster: Cluster) -> None:
        pods = await cluster.pods(self._options.selector, self._options.page)
        found = await asked(pods)
        if late := len(pods) - len(found):
            _log.warning("pods were not asked for want of time", pods=late)
        # one that starts or leaves is not ready, and need not answer
        self._note(frozenset(pod.name for pod, said in found if said is None and pod.ready))
        # What a silent pod holds nobody knows, so the last figure stands. One that drains is not ready, and goes before costs are compared.
        wanted = [(pod, cost(said.sessions, self._options.step)) for pod, said in found if said is not None and not said.draining]
        await self._write(cluster, [(pod, value) for pod, value in wanted if value != pod.cost])

    async def _write(self, cluster: Cluster, stale: list[tuple[Pod, int]]) -> None:
        stale.sort(key=lambda each: abs(each[1] - (each[0].cost or 0)), reverse=True)
        forbidden: Refused | None = None
        for pod, value in stale[:MOST_WRITES]:
            try:
                await cluster.annotate(pod.name, value)
            except Refused as refused:
                if refused.code not in OF_ONE_POD:
                    raise
                _log.debug("cost not written", pod=pod.name, code=refused.code)
                forbidden = refused if refused.code == 403 else forbidden
            else:
                _log.debug("cost", pod=pod.name, was=pod.cost, now=value)
        if forbidden is not None:
            raise forbidden

    def _note(self, mute: frozenset[str]) -> None:
        for name in sorted(mute - self._mute):
            _log.warning("pod does not tell its sessions", pod=name)
        self._mute = mute

    def _promise(self, seconds: float) -> None:
        if (path := self._options.alive) is not None:
            fresh = path.with_name(f"{path.name}.new")
            fresh.write_text(f"{time.time() + seconds:.0f}\n", encoding="ascii")
            fresh.replace(path)


def serve(options: Options, log_level: str) -> None:
    """Until SIGTERM or Ctrl-C, which end it at once. Logs JSON lines on standard error."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping().get(log_level.upper(), logging.INFO)),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    asyncio.run(_until_told(Controller(options)))


async def _until_told(controller: Controller) -> None:
    running = asyncio.ensure_future(controller.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await running
