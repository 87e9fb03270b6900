"""The way to Redis: EVALSHA with the scripts of this package, each call bounded in time, failures typed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, cast

import msgspec
from redis import exceptions as failures
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from session_store.errors import StoreError, StoreUnavailable, StoreUrlError
from session_store.exchange import Value, exchange
from session_store.hidden_pool import HiddenPool
from session_store.primary import PrimaryPool
from session_store.scripts import read_scripts
from session_store.sentinel_url import SCHEMES, parse_sentinel_url
from session_store.sentinels import Sentinels
from session_store.settings import StoreSettings

_UNAVAILABLE = (
    failures.ConnectionError,
    failures.TimeoutError,
    failures.InvalidResponse,
    failures.ReadOnlyError,
    failures.OutOfMemoryError,
    failures.ClusterDownError,
    failures.ClusterError,
    failures.RedisClusterException,
    failures.TryAgainError,
    failures.MasterDownError,
    OSError,
    TimeoutError,
)
_REFUSES = ("NOREPLICAS", "MISCONF")
"""A server that may not write now: too few replicas follow it, or it cannot save."""


class Call(msgspec.Struct, frozen=True):
    """One run of a script. All keys share a hash slot."""

    script: str
    keys: Sequence[str]
    args: Sequence[Value]


class Connection:
    """A pool of connections to one Redis, to the primary that sentinels name (`redis+sentinel://`), or to a cluster (`redis+cluster://`)."""

    def __init__(self, url: str, settings: StoreSettings) -> None:
        self._timeout_s = settings.redis_timeout_ms / 1000
        self._scripts = read_scripts()
        self._cluster = url.startswith(("redis+cluster://", "rediss+cluster://"))
        # No socket_timeout: the client would write under asyncio.wait_for, which in Python 3.11 loses a cancel; our own timeout bounds all.
        bounds: dict[str, Any] = {"socket_timeout": None, "socket_connect_timeout": self._timeout_s}
        # A retry could run a script twice, so the caller decides.
        retry = Retry(NoBackoff(), 0)
        self._sentinels: Sentinels | None = None
        try:
            self._client = self._connect(url, settings, retry, bounds)
        except (ValueError, TypeError, AttributeError, failures.RedisError):
            # the reason quotes what it took for a port: often a piece of the password
            raise StoreUrlError(
                "the URL of Redis cannot be read; in its password '/', '#', '?', '@', '[' and ']' are %2F, %23, %3F, %40, %5B and %5D"
            ) from None

    def _connect(self, url: str, settings: StoreSettings, retry: Retry, bounds: dict[str, Any]) -> Any:
        if self._cluster:
            url = url.replace("+cluster", "", 1)
            return RedisCluster.from_url(url, retry=retry, max_connections=settings.redis_connections, **bounds)
        # Callers beyond the bound wait for a connection instead of failing; the call's own timeout bounds that, too.
        bounds |= {"retry": retry, "max_connections": settings.redis_connections, "timeout": self._timeout_s}
        pool: Any
        if url.startswith(SCHEMES):
            parsed = parse_sentinel_url(url)
            self._sentinels = Sentinels(parsed, self._timeout_s)
            pool = PrimaryPool(parsed, self._sentinels, settings.sentinel_poll_ms / 1000, **(bounds | parsed.server_options))
        else:
            pool = HiddenPool.from_url(url, **bounds)
        pool.make_connection()  # an option that there is not shows here, and not at the first call
        return Redis.from_pool(pool)

    @property
    def moves(self) -> int:
        """How often the sentinels named another primary, which may lack the last writes."""
        return self._sentinels.moves if self._sentinels is not None else 0

    async def load(self) -> None:
        """Loads all scripts, in one round trip where there is one server. Raises StoreUnavailable."""
        try:
            async with asyncio.timeout(self._timeout_s):
                if self._cluster:
                    for script in self._scripts.values():
                        await self._client.script_load(script.text)
                else:
                    pipeline = self._client.pipeline(transaction=False)
                    for script in self._scripts.values():
                        pipeline.script_load(script.text)
                    await pipeline.execute()
        except (failures.RedisError, OSError) as error:
            raise _translated("load", error) from error

    async def run(self, script: str, keys: Sequence[str], *args: Value) -> Any:
        """Runs one script and returns its answer. Raises StoreUnavailable when there is none in time, StoreError when the script failed."""
        outcome = (await self.run_many([Call(script, keys, args)]))[0]
        if isinstance(outcome, StoreError):
            raise outcome
        return outcome

    async def run_many(self, calls: Sequence[Call]) -> list[Any]:
        """Runs the calls in one round trip (to a cluster: one each, at once). Each gets its own answer or StoreError; raises nothing."""
        outcomes = await self._attempt(calls)
        missing = [i for i, outcome in enumerate(outcomes) if isinstance(outcome, failures.NoScriptError)]
        if missing:
            try:
                await self.load()
            except StoreError as error:
                again: list[Any] = [error] * len(missing)
            else:
                again = await self._attempt([calls[i] for i in missing])
            for i, outcome in zip(missing, again, strict=True):
                outcomes[i] = outcome
        return [_translated(call.script, o) if isinstance(o, Exception) else o for call, o in zip(calls, outcomes, strict=True)]

    async def close(self) -> None:
        """Closes every connection."""
        # the pool's own: that of the client does not call it before redis-py 8
        await (self._client if self._cluster else self._client.connection_pool).aclose()

    async def _attempt(self, calls: Sequence[Call]) -> list[Any]:
        try:
            async with asyncio.timeout(self._timeout_s):
                if self._cluster:
                    return list(await asyncio.gather(*(self._one(call) for call in calls), return_exceptions=True))
                return await exchange(self._client.connection_pool, [self._command(call) for call in calls])
        except (failures.RedisError, OSError) as error:
            return [error] * len(calls)

    def _one(self, call: Call) -> Awaitable[Any]:
        return cast("Awaitable[Any]", self._client.execute_command(*self._command(call)))

    def _command(self, call: Call) -> tuple[Value, ...]:
        return ("EVALSHA", self._scripts[call.script].sha, len(call.keys), *call.keys, *call.args)


def _translated(script: str, error: Exception) -> StoreError:
    if isinstance(error, StoreError):
        return error
    kind = StoreUnavailable if isinstance(error, _UNAVAILABLE) or str(error).startswith(_REFUSES) else StoreError
    translated = kind(f"redis did not carry out {script}: {type(error).__name__}")
    # The server's words may quote a script's arguments, so they stay in the cause.
    translated.__cause__ = error
    return translated
