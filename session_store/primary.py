"""Connections to the primary that the sentinels name, and to no other server."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from redis import exceptions as failures
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection

from session_store.exchange import facts
from session_store.hidden_pool import HiddenPool
from session_store.sentinel_url import SentinelUrl
from session_store.sentinels import Sentinels


class NotPrimary(failures.ConnectionError):
    """The server that the sentinels name is a replica: they are behind, or it has only just been demoted."""


class ToPrimary(Connection):
    """Asks the sentinels whenever it is made, and the server itself for its role."""

    def __init__(self, *, sentinels: Sentinels, **options: Any) -> None:
        super().__init__(**options)
        self._sentinels = sentinels

    async def connect_check_health(self, check_health: bool = True, retry_socket_connect: bool = True) -> None:
        """Raises NoPrimary, NotPrimary, and what every connection raises."""
        if not self.is_connected:
            self.host, self.port = await self._sentinels.primary()
        try:
            await super().connect_check_health(check_health, retry_socket_connect)
        except failures.RedisError:
            self._sentinels.rest()
            raise

    async def on_connect_check_health(self, check_health: bool = True) -> None:
        """Raises NotPrimary."""
        await super().on_connect_check_health(check_health)
        # ROLE and INFO want rights of an administrator
        await self.send_command("HELLO", check_health=False)
        if facts(await self.read_response()).get(b"role") != b"master":
            raise NotPrimary("the server is not the primary")


class ToPrimaryTls(ToPrimary, SSLConnection):
    """The same over TLS."""


class PrimaryPool(HiddenPool):
    """Asks the sentinels now and then, too: a primary that they gave up may still answer, and take what nobody will ever find."""

    def __init__(self, url: SentinelUrl, sentinels: Sentinels, poll_s: float, **options: Any) -> None:
        super().__init__(connection_class=ToPrimaryTls if url.tls else ToPrimary, sentinels=sentinels, **options)
        self._sentinels, self._poll_s = sentinels, poll_s
        self._watching: asyncio.Task[None] | None = None

    async def ensure_connection(self, connection: AbstractConnection) -> None:
        """Whatever leads to a former primary is made anew. Raises NotPrimary when there was another one meanwhile."""
        await self._drop_stale(connection)
        await super().ensure_connection(connection)
        if await self._drop_stale(connection):
            raise NotPrimary("the primary is another one by now")
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch(), name="watch the sentinels")

    async def aclose(self) -> None:
        """Closes every connection, those to the sentinels included."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._sentinels.close()  # first: from now on nothing connects anew
        await super().aclose()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            with contextlib.suppress(failures.RedisError, OSError):
                await self._sentinels.primary()
                for connection in tuple(self._available_connections):
                    await self._drop_stale(connection)

    async def _drop_stale(self, connection: AbstractConnection) -> bool:
        if stale := isinstance(connection, ToPrimary) and (connection.host, connection.port) != self._sentinels.known:
            await connection.disconnect(nowait=True)
        return stale
