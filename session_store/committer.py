"""All sessions of a process share a few round trips: what waits while they are under way rides in the next."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, cast

from session_store.connection import Call, Connection
from session_store.errors import StoreError, StoreUnavailable
from session_store.settings import StoreSettings


class Committer:
    """Gathers calls of many sessions into round trips. A caller asks again after its answer, so the order of its own calls stands."""

    def __init__(self, connection: Connection, settings: StoreSettings) -> None:
        self._connection = connection
        self._most_calls = settings.commit_batch_sessions
        self._most_bytes = settings.commit_batch_bytes
        self._waiting: deque[tuple[Call, int, asyncio.Future[Any]]] = deque()
        self._most_trips = settings.commit_round_trips_count
        self._trips: set[asyncio.Task[None]] = set()
        self._closed = False

    async def run(self, call: Call, size: int) -> Any:
        """The call's own answer; `size` is its payload in bytes. Raises StoreError and StoreUnavailable of this call only.

        A caller that is cancelled while it waits takes its call back if it was not sent yet.
        """
        if self._closed:
            raise StoreUnavailable("the store is closed")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((call, size, future))
        if len(self._trips) < self._most_trips:
            trip = asyncio.create_task(self._work(), name="store-committer")
            self._trips.add(trip)
            trip.add_done_callback(self._trips.discard)
        return await future

    async def close(self) -> None:
        """Refuses further calls and lets those that wait finish."""
        self._closed = True
        await asyncio.gather(*self._trips, return_exceptions=True)

    async def _work(self) -> None:
        # One turn of the loop lets everybody who is ready now join the first round trip.
        await asyncio.sleep(0)
        try:
            while batch := self._gather():
                outcomes = await self._connection.run_many([call for call, _ in batch])
                for (_, future), outcome in zip(batch, outcomes, strict=True):
                    _resolve(future, outcome)
        except BaseException:
            while self._waiting:
                _resolve(self._waiting.popleft()[2], StoreUnavailable("the committer was stopped"))
            raise
        finally:
            # in the step that found nobody waiting: who calls a moment later must see that nobody works
            self._trips.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    def _gather(self) -> list[tuple[Call, asyncio.Future[Any]]]:
        batch: list[tuple[Call, asyncio.Future[Any]]] = []
        total = 0
        while self._waiting and len(batch) < self._most_calls and (not batch or total + self._waiting[0][1] <= self._most_bytes):
            call, size, future = self._waiting.popleft()
            if not future.done():
                batch.append((call, future))
                total += size
        return batch


def _resolve(future: asyncio.Future[Any], outcome: Any) -> None:
    if future.done():
        return
    if isinstance(outcome, StoreError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
