"""Scripts over the deployment's keys: each gets the common prefix and the limits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from session_store.connection import Call, Connection
from session_store.errors import StoreUnavailable
from session_store.exchange import Value
from session_store.keys import POOL
from session_store.settings import StoreSettings

_LIMITS = {
    "key_ttl_ms",
    "replica_ttl_ms",
    "gateway_ttl_ms",
    "reservation_ttl_ms",
    "stale_slot_ms",
    "mute_ms",
    "silence_ms",
    "waiter_ttl_ms",
}


class Pool:
    """Runs the pool's scripts, and knows for how long nobody may be reaped."""

    def __init__(self, connection: Connection, settings: StoreSettings) -> None:
        self._connection = connection
        self._limits = msgspec.json.encode(settings.model_dump(include=_LIMITS)).decode()
        self._own_mute_ms = settings.mute_ms
        self._was_away = False
        self._moves = 0
        self._muted_until_ms = 0

    def call(self, script: str, *args: Value) -> Call:
        """A run of the script, to be sent together with others."""
        return Call(script, (POOL,), (self._limits, *args))

    async def run(self, script: str, *args: Value) -> Any:
        """The script's answer. Raises StoreUnavailable and StoreError."""
        try:
            return await self._connection.run(script, (POOL,), self._limits, *args)
        except StoreUnavailable:
            self._was_away = True
            raise

    async def run_many(self, script: str, calls: Iterable[Sequence[Value]]) -> list[Any]:
        """The script's answers, or each one's StoreError, in one round trip."""
        batch = [self.call(script, *args) for args in calls]
        return await self._connection.run_many(batch) if batch else []

    async def mute_ms(self) -> int:
        """Milliseconds of Redis' clock for which nobody may be reaped: Redis was empty or silent, is another server than before, or this
        process could not reach it."""
        left_ms, now_ms = (int(value) for value in await self.run("muted"))
        if self._was_away or self._moves != self._connection.moves:
            self._was_away, self._moves = False, self._connection.moves
            self._muted_until_ms = now_ms + self._own_mute_ms
        return max(left_ms, self._muted_until_ms - now_ms, 0)
