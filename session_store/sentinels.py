"""The sentinels: which server is the primary now."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec
from redis import exceptions as failures
from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from session_store.exchange import exchange, facts
from session_store.hidden_pool import HiddenPool
from session_store.sentinel_url import SentinelUrl

Address = tuple[str, int]
REST_S = 0.05
"""After a server that they named was of no use: calls come by the hundred then, and the sentinels are about to fail over."""


class NoPrimary(failures.ConnectionError):
    """No sentinel says who the primary is."""


class UnknownService(NoPrimary):
    """Most of the sentinels watch over no service of that name."""


class SentinelsRefused(NoPrimary):
    """The sentinels take neither this user and password nor none."""


class Word(msgspec.Struct, frozen=True):
    """What a sentinel says: the primary (None: it knows no such service), and the number of the failover that made it one."""

    primary: Address | None
    epoch: int


class Sentinel:
    """One of them, over one connection. One that does not answer is not asked again before it was given up."""

    def __init__(self, address: Address, service: str, timeout_s: float, tls: bool, options: dict[str, Any]) -> None:
        bounds = {"retry": Retry(NoBackoff(), 0), "socket_timeout": None, "socket_connect_timeout": timeout_s}
        reached: dict[str, Any] = {"host": address[0], "port": address[1], "protocol": 2}
        self._pool = HiddenPool(
            max_connections=1,
            timeout=timeout_s,
            connection_class=SSLConnection if tls else Connection,
            **(reached | bounds | options),
        )
        self._questions = [("SENTINEL", "MASTER", service), ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)]
        self._timeout_s = timeout_s
        self._asking: asyncio.Task[None] | None = None
        self.word: Word | None = None
        """Its last one; None when it could not be asked, for `failure`."""
        self.failure: Exception | None = None

    def ask(self) -> asyncio.Task[None]:
        """The question that is under way, or a new one: then `word` or `failure` is there."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="ask a sentinel")
        return self._asking

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        await self._pool.aclose()

    async def _ask(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                known, found = await exchange(self._pool, self._questions)
            self.word, self.failure = _word(known, found), None
        except (failures.RedisError, OSError, ValueError) as failure:
            self.word, self.failure = None, failure


class Sentinels:
    """All are asked at once. The word of the latest failover counts; one that is older than what is known, only when most say it.

    For the first of them may hang, and one that was cut off from the others may still name a primary that was demoted.
    """

    def __init__(self, url: SentinelUrl, timeout_s: float) -> None:
        """`timeout_s`: of the store's calls, of which finding the primary may take half."""
        self._all = [Sentinel(address, url.service, timeout_s, url.tls, url.sentinel_options) for address in url.sentinels]
        self._most = len(self._all) // 2 + 1
        self._patience_s = timeout_s / 2
        self._rest_s = min(REST_S, timeout_s / 5)
        self._rested = asyncio.Event()
        self._rested.set()
        self._resting: asyncio.TimerHandle | None = None
        self._round: asyncio.Task[Address | NoPrimary] | None = None
        self._closed = False
        self._epoch = 0
        self.known: Address | None = None
        """The primary, as far as was heard."""
        self.moves = 0
        """How often there was another one."""

    async def primary(self) -> Address:
        """Asks, once for all who want to know at this moment. With no sentinel in reach it is the one that is known. Raises NoPrimary."""
        if self._closed:
            raise NoPrimary("the sentinels are asked no more")
        if self._round is None or self._round.done():
            self._round = asyncio.create_task(self._ask(), name="ask the sentinels")
        asking = self._round
        await asyncio.wait([asking])  # no shield: a round that `close` cancels would look like a cancel of every caller
        found = NoPrimary("the sentinels are asked no more") if asking.cancelled() else asking.result()
        if isinstance(found, NoPrimary):
            raise found
        return found

    def rest(self) -> None:
        """The server that they named was of no use: they are asked again after `REST_S` (or a fifth of `timeout_s`), not at once."""
        self._stop_resting()
        self._rested.clear()
        self._resting = asyncio.get_running_loop().call_later(self._rest_s, self._rested.set)

    def _stop_resting(self) -> None:
        if self._resting is not None:
            self._resting.cancel()

    async def close(self) -> None:
        """From now on there is no primary."""
        self._closed, self.known = True, None
        self._stop_resting()
        if self._round is not None:
            self._round.cancel()
            await asyncio.gather(self._round, return_exceptions=True)
        await asyncio.gather(*(sentinel.close() for sentinel in self._all))

    async def _ask(self) -> Address | NoPrimary:
        await self._rested.wait()
        asked = {sentinel.ask(): sentinel for sentinel in self._all}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience_s):
                for _ in asked:
                    pending = {task for task in asked if not task.done()}
                    if not pending or len(_words(each for task, each in asked.items() if task.done())) >= self._most:
                        break
                    await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        return self._judge(_words(self._all))

    def _judge(self, words: list[Word]) -> Address | NoPrimary:
        found = [(word.epoch, word.primary) for word in words if word.primary is not None]
        if not found:
            return self._nobody(len(words))
        epoch = max(epoch for epoch, _ in found)
        # they differ where some tell names and some addresses, may not tell the number, or one was set up by a mistake
        named = Counter(primary for each, primary in found if each == epoch)
        primary = max(named, key=lambda each: (named[each], each == self.known))
        if self.known is None or epoch >= self._epoch or len(found) >= self._most:
            self.moves += self.known not in (None, primary)
            self._epoch, self.known = epoch, primary
        return self.known

    def _nobody(self, unknown: int) -> Address | NoPrimary:
        """None of them names a primary, and so many know no such service."""
        if unknown >= self._most:
            return UnknownService("the sentinels know no such service")
        if self.known is not None:
            return self.known
        if any(isinstance(sentinel.failure, failures.AuthenticationError) for sentinel in self._all):
            return SentinelsRefused("the sentinels refuse user and password")
        return NoPrimary("no sentinel names a primary")


def _words(sentinels: Iterable[Sentinel]) -> list[Word]:
    return [sentinel.word for sentinel in sentinels if sentinel.word is not None]


def _word(known: Any, found: Any) -> Word:
    """What the two answers say. A sentinel in the middle of a failover gives the new address in the second one only."""
    if isinstance(found, Exception):
        raise found
    if found is None:
        return Word(None, 0)
    # who may not ask for the whole of it learns the address all the same
    epoch = b"0" if isinstance(known, Exception) else facts(known).get(b"config-epoch", b"0")
    match found:
        case [bytes(host), bytes(port)] if host and isinstance(epoch, bytes) and 0 < int(port) < 65536:
            return Word((host.decode(), int(port)), int(epoch))
    raise failures.InvalidResponse("no address")
