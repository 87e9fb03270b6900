"""The store: all that several processes have to agree on, in Redis or Valkey."""

from __future__ import annotations

from session_store.admission import Admission
from session_store.api_keys import ApiKeys
from session_store.client_secrets import ClientSecrets
from session_store.committer import Committer
from session_store.connection import Connection
from session_store.errors import StoreUrlError
from session_store.pool import Pool
from session_store.rates import Rates
from session_store.records import Records
from session_store.registry import Registry
from session_store.sentinels import UnknownService
from session_store.settings import StoreSettings

_UNKNOWN_SERVICE = "PARLEY_REDIS_URL: its sentinels know no service of that name (redis+sentinel://HOST:PORT/SERVICE)"


class Store:
    """`registry` knows who is there, `admission` who has which slot, `records` who holds which session and what it said.

    `api_keys` knows who may come in, `client_secrets` whom they let in for a while, `rates` how often something happened.
    """

    def __init__(self, connection: Connection, settings: StoreSettings) -> None:
        self.settings = settings
        self._connection = connection
        self._committer = Committer(connection, settings)
        pool = Pool(connection, settings)
        self.registry = Registry(connection, pool, settings)
        self.admission = Admission(pool, settings)
        self.records = Records(connection, self._committer, pool, settings)
        self.api_keys = ApiKeys(connection)
        self.client_secrets = ClientSecrets(connection)
        self.rates = Rates(connection)

    @classmethod
    async def open(cls, url: str, settings: StoreSettings | None = None) -> Store:
        """Connects to `unix:///path`, `redis[s]://host:port/db`, `redis[s]+cluster://host:port`, or the primary that sentinels name:
        `redis[s]+sentinel://host:port,host:port/service/db` (see sentinel_url); and loads the scripts.

        Raises StoreUnavailable, and StoreUrlError for what is no such URL, or a service that the sentinels do not know. Later outages need
        no new store: calls fail while Redis is away and succeed again when it is back.
        """
        settings = settings or StoreSettings()
        connection = Connection(url, settings)
        try:
            await connection.load()
        except BaseException as failure:
            await connection.close()
            if isinstance(failure.__cause__, UnknownService):
                raise StoreUrlError(_UNKNOWN_SERVICE) from None
            raise
        return cls(connection, settings)

    async def close(self) -> None:
        """Finishes the commits that wait and closes every connection."""
        await self._committer.close()
        await self._connection.close()

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
