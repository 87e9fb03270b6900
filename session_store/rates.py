"""How often something may happen, counted for the whole deployment: at most so often within any window that ends now."""

from __future__ import annotations

import uuid

from session_store.connection import Connection
from session_store.keys import rate_key

MINUTE_MS = 60_000


class Rates:
    """Raises StoreUnavailable when Redis does not answer in time, and StoreError."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def take(self, who: str, what: str, most: int, window_ms: int = MINUTE_MS) -> int:
        """0, and it is counted; or the milliseconds until there is room again, and nothing changed."""
        return int(await self._connection.run("rate_take", (rate_key(who, what),), most, window_ms, uuid.uuid4().hex))
