"""The pulse of the replicas that this gateway's sessions use.

One that falls silent, at whose address nobody listens any more, or whose engine stands still is lost at once; one that drains says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import grpc
import structlog
from parley_stage.v1 import stage_pb2 as pb
from parley_stage.v1 import stage_pb2_grpc

from . import metrics

log = structlog.get_logger()
PERIOD_MS = 250
RETRY_S = 0.1
LOOK_S = 0.1
"""How often this process looks whether it stood still itself; what it missed of that time does not count as silence."""


REFUSED = ("connection refused", "no such file or directory")
"""How gRPC tells that nobody listens at an address (of a socket file: any more), in whatever case."""


class _Care(NamedTuple):
    stage: str
    lost: Callable[[str], None]
    draining: Callable[[], None]


class _Silence:
    """How long nothing was heard, by the time in which this process could have heard it."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.begin()

    def begin(self) -> None:
        self.ends = asyncio.get_running_loop().time() + self._timeout_s

    async def broken_by(self, call: Any) -> Any:
        """The next beat of the call. Raises TimeoutError when the silence lasted too long, and what the call raises."""
        loop = asyncio.get_running_loop()
        reading = asyncio.ensure_future(call.read())
        try:
            while not reading.done():
                looks_at = loop.time() + max(0.0, min(LOOK_S, self.ends - loop.time()))
                await asyncio.wait([reading], timeout=looks_at - loop.time())
                stalled_s = max(0.0, loop.time() - looks_at)
                if looks_at < self.ends:
                    self.ends += stalled_s
                elif stalled_s >= LOOK_S:
                    self.ends = loop.time() + LOOK_S  # beats may wait to be read
                elif not reading.done():
                    raise TimeoutError
            return reading.result()
        finally:
            reading.cancel()


class PulseWatch:
    """Watches each address while somebody cares for it."""

    def __init__(self, stub: Callable[[str], stage_pb2_grpc.StageStub], gateway_id: str, timeout_s: float, engine_timeout_s: float) -> None:
        self._stub, self._gateway_id = stub, gateway_id
        self._timeout_s, self._engine_timeout_ms = timeout_s, engine_timeout_s * 1000
        self._cares: dict[str, dict[object, _Care]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def care(self, address: str, key: object, stage: str, lost: Callable[[str], None], draining: Callable[[], None] = lambda: None) -> None:
        """Call `lost(why)` when the replica at this address, or this stage's engine there, stands still; `draining()` at each beat of a
        replica that wants to be rid of its sessions."""
        self._cares.setdefault(address, {})[key] = _Care(stage, lost, draining)
        if address not in self._tasks:
            self._tasks[address] = asyncio.create_task(self._watch(address), name=f"pulse {address}")

    def forget(self, address: str, key: object) -> None:
        cares = self._cares.get(address, {})
        cares.pop(key, None)
        if not cares:
            self._cares.pop(address, None)
            if (task := self._tasks.pop(address, None)) is not None:
                task.cancel()

    async def close(self) -> None:
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, address: str) -> None:
        while True:
            why = await self._until_silent(address)
            log.warning("replica lost its pulse", address=address, why=why)
            metrics.PULSES_LOST.inc()
            for care in list(self._cares.get(address, {}).values()):
                care.lost(why)
            await asyncio.sleep(self._timeout_s)

    async def _until_silent(self, address: str) -> str:
        """Returns why, once there was no beat for the timeout. A stream that breaks is opened again: only silence tells."""
        loop = asyncio.get_running_loop()
        silence = _Silence(self._timeout_s)
        while True:
            call = self._stub(address).Pulse(pb.PulseRequest(gateway_id=self._gateway_id, period_ms=PERIOD_MS))
            try:
                while (beat := await silence.broken_by(call)) is not grpc.aio.EOF:
                    silence.begin()
                    self._judge(address, beat)
            except TimeoutError:
                return "frozen"
            except grpc.aio.AioRpcError as failure:
                if _nobody_listens(failure):
                    return "gone"
                if loop.time() >= silence.ends:
                    return str(failure.code().name).lower()
            finally:
                call.cancel()
            if loop.time() >= silence.ends:
                return "stopped"
            await asyncio.sleep(RETRY_S)

    def _judge(self, address: str, beat: pb.PulseResponse) -> None:
        ages = {stage.stage: stage.engine_age_ms for stage in beat.stages}
        for care in list(self._cares.get(address, {}).values()):
            if ages.get(care.stage, 0) > self._engine_timeout_ms:
                care.lost("engine stands still")
            elif beat.draining:
                care.draining()


def _nobody_listens(failure: grpc.aio.AioRpcError) -> bool:
    """The process is gone: a network that fails does not answer so."""
    details = (failure.details() or "").lower()
    return failure.code() == grpc.StatusCode.UNAVAILABLE and any(each in details for each in REFUSED)
