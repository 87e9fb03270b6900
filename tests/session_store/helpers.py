"""What the store's tests share."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from redis.asyncio import Redis

from session_store import Commit, Lease, Placement, ReplicaBeat, StageOffer, Store, StoreSettings, TakenOver
from session_store.keys import POOL, session_keys
from session_store.tokens import digest, new_token

NOWHERE: dict[str, Placement] = {}


def beat(
    replica: str, *stages: str, slots: int = 2, held: Sequence[str] = (), draining: bool = False, kv: tuple[int, int] = (0, 0)
) -> ReplicaBeat:
    """A beat of a replica that offers `stages` alike."""
    offers = tuple(StageOffer(stage, slots, *kv, model="stub", held=tuple(held)) for stage in stages or ("asr",))
    return ReplicaBeat(replica, "thinker", f"host:{replica}", offers, draining)


class Snapshot:
    """An old copy of every key, as a replica that lagged has it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._keys: dict[bytes, tuple[bytes, int]] = {}

    async def take(self) -> None:
        async with Redis.from_url(self._url) as admin:
            keys = await admin.keys()
            async with admin.pipeline(transaction=True) as at_once:
                for key in keys:
                    at_once.dump(key).pttl(key)
                told = await at_once.execute()
        copies = zip(keys, told[::2], told[1::2], strict=True)
        self._keys = {key: (value, max(0, ttl)) for key, value, ttl in copies if value is not None}

    async def fail_over(self) -> None:
        """In one step: who writes meanwhile, writes before it or after it."""
        async with Redis.from_url(self._url) as admin, admin.pipeline(transaction=True) as at_once:
            at_once.flushall()
            for key, (value, ttl) in self._keys.items():
                at_once.restore(key, ttl, value)
            await at_once.execute()


async def create(store: Store, session: str, holder: str = "h1", placements: dict[str, Placement] = NOWHERE, token: str = "") -> Lease:
    """A record with plain values; with a token it has a checkpoint, too, so that it may be resumed."""
    lease = await store.records.create(session, "g1", holder, "t1", "profile", placements, token_digest=digest(token) if token else "")
    if token:
        await store.records.commit(commit(lease, 1))
    return lease


async def resume(store: Store, session: str, token: str, holder: str = "h2", after_seq: int = 0, **more: bool) -> tuple[TakenOver, str]:
    """A takeover by gateway g2 for the tenant t1, and the new token."""
    new = new_token()
    names = {"tenant": "t1", "gateway_id": "g2", "holder_id": holder}
    taken = await store.records.takeover(session, token=token, new_digest=digest(new), after_seq=after_seq, **names, **more)
    return taken, new


def commit(lease: Lease, first_seq: int, *payloads: bytes, **fields: bytes | None) -> Commit:
    """A commit of events with the payloads given."""
    return Commit(lease, first_seq, [(b"head", payload) for payload in payloads], b"hot", fields)


async def used(store: Store) -> dict[tuple[str, str], int]:
    """Taken slots by (replica, stage), those with none left out."""
    return {(r.replica_id, s.stage): s.used for r in await store.registry.replicas() for s in r.stages if s.used}


async def until(condition: Callable[[], Awaitable[bool]], timeout_s: float = 30.0) -> None:
    """Asks until the condition holds: deadlines are Redis', so only Redis can say that they passed."""
    async with asyncio.timeout(timeout_s):
        while not await condition():  # noqa: ASYNC110 -- Redis has no event for a passed deadline
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def store_with(url: str, **settings: int) -> AsyncIterator[Store]:
    """Another store with other settings (and calls that may take 5 s) on the same server."""
    async with await Store.open(url, StoreSettings(**{"redis_timeout_ms": 5_000, **settings})) as store:
        yield store


async def pass_deadline(url: str, session: str, name: str) -> None:
    """Makes one deadline of the record (lease, grace, idle or closing) pass, grace included, and has the pool know."""
    async with Redis.from_url(url) as admin:
        await admin.hset(session_keys(session)[0], f"{name}_deadline_ms", "1")
        await admin.zadd(f"{POOL}:deadlines", {session: 1})


async def forget_silence(url: str) -> None:
    """Ends the mute time that follows an empty Redis."""
    async with Redis.from_url(url) as admin:
        await admin.hset("parley:{pool}:clock", "muted_until_ms", "0")


async def keys_without_ttl(url: str) -> list[bytes]:
    """Keys that nothing would ever delete."""
    async with Redis.from_url(url) as admin:
        return [key async for key in admin.scan_iter(count=1000) if await admin.pttl(key) == -1]  # -2: gone since it was listed


async def slot_members(url: str) -> dict[bytes, list[bytes]]:
    """Members of every sorted set of the pool that has any, replicas and gateways left out."""
    async with Redis.from_url(url) as admin:
        names = [key async for key in admin.scan_iter(count=1000, _type="zset")]
        sets = {name: await admin.zrange(name, 0, -1) for name in names}
    return {name: members for name, members in sets.items() if members and not name.endswith((b":replicas", b":gateways"))}
