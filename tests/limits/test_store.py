"""Limits of the store that only a server of its own shows: connections, and how long keys live."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from redis.asyncio import Redis

from session_store import Store, StoreSettings
from tests.session_store.helpers import beat, commit, create, until
from tests.support.valkey import ValkeyProcess

PATIENT = {"redis_timeout_ms": 10_000}


@pytest.fixture
def server() -> Iterator[ValkeyProcess]:
    with ValkeyProcess() as process:
        yield process


async def _clients(server: ValkeyProcess) -> int:
    async with Redis.from_url(server.url) as admin:
        return len(await admin.client_list()) - 1


@pytest.mark.behaviour("X14")
async def test_one_process_has_so_many_connections_and_no_more(server: ValkeyProcess) -> None:
    """All calls are made, and none is refused for want of a connection."""
    settings = StoreSettings(**PATIENT, redis_connections=3)
    async with await Store.open(server.url, settings) as store:
        await store.registry.beat(beat("r1", slots=100))
        await asyncio.gather(*(create(store, f"s{n}") for n in range(60)))
        assert await _clients(server) == 3
        assert {(await store.records.load(f"s{n}")).record.state for n in range(60)} == {"attached"}


async def _longest_ms(server: ValkeyProcess) -> int:
    """The most that any key has to live; -1 would be for ever."""
    async with Redis.from_url(server.url) as admin:
        lives = [await admin.pttl(key) async for key in admin.scan_iter()]
    assert lives and min(lives) >= 0
    return max(lives)


@pytest.mark.behaviour("X14")
async def test_no_key_outlives_the_backstop(server: ValkeyProcess) -> None:
    async with await Store.open(server.url, StoreSettings(**PATIENT, key_ttl_ms=50_000)) as store:
        await store.registry.beat(beat("r1"))
        await store.registry.beat_gateway("g1", "ws://one")
        await store.admission.reserve("s1", "t1", ("asr",))
        lease = await create(store, "s1", token="token")
        await store.records.commit(commit(lease, 1, b"said", items=b"i"))
        assert 0 < await _longest_ms(server) <= 50_000


@pytest.mark.behaviour("X14")
async def test_a_closed_record_stays_for_its_time(server: ValkeyProcess) -> None:
    async with await Store.open(server.url, StoreSettings(**PATIENT, closed_record_ttl_ms=300)) as store:
        lease = await create(store, "s1")
        await store.records.close(lease, "done")
        assert (await store.records.load("s1")).record.state == "closed"
        async with Redis.from_url(server.url) as admin:
            (key,) = [name async for name in admin.scan_iter("*s1*:rec")]
            assert 0 < await admin.pttl(key) <= 300

            async def gone() -> bool:
                return not await admin.exists(key)

            await until(gone)
