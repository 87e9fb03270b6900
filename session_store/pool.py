"""Scripts over the deployment's keys: each gets the common prefix and the limits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from session_store.connection import Call, Connection, Value
from session_store.keys import POOL
from session_store.settings import StoreSettings

_LIMITS = {"key_ttl_ms", "replica_ttl_ms", "gateway_ttl_ms", "reservation_ttl_ms", "stale_slot_ms", "mute_ms", "silence_ms"}


class Pool:
    """Runs the pool's scripts."""

    def __init__(self, connection: Connection, settings: StoreSettings) -> None:
        self._connection = connection
        self._limits = msgspec.json.encode(settings.model_dump(include=_LIMITS)).decode()

    async def run(self, script: str, *args: Value) -> Any:
        """The script's answer. Raises StoreUnavailable and StoreError."""
        return await self._connection.run(script, (POOL,), self._limits, *args)

    async def run_many(self, script: str, calls: Iterable[Sequence[Value]]) -> list[Any]:
        """The script's answers, or each one's StoreError, in one round trip."""
        batch = [Call(script, (POOL,), (self._limits, *args)) for args in calls]
        return await self._connection.run_many(batch) if batch else []
