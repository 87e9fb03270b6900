"""A pool of connections that does not tell how they are made."""

from __future__ import annotations

from redis.asyncio import BlockingConnectionPool


class HiddenPool(BlockingConnectionPool):
    """For user and password are among that, and redis-py shows them before its version 8."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"
