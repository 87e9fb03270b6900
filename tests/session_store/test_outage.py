"""Redis dead, frozen, back: typed, in time, and over when it is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from redis.asyncio import Redis

from session_store import Committed, SessionMissing, Store, StoreSettings, StoreUnavailable
from tests.session_store.helpers import beat, commit, create, until
from tests.support.valkey import ValkeyProcess

TIMEOUT_MS = 250


@pytest.fixture
def server() -> Iterator[ValkeyProcess]:
    with ValkeyProcess() as process:
        yield process


async def _opened(server: ValkeyProcess, timeout_ms: int = TIMEOUT_MS) -> Store:
    return await Store.open(server.url, StoreSettings(redis_timeout_ms=timeout_ms))


async def _available(store: Store) -> bool:
    try:
        await store.registry.replicas()
    except StoreUnavailable:
        return False
    return True


async def test_a_killed_redis_is_unavailable_at_once_and_comes_back(server: ValkeyProcess) -> None:
    """No call waits for its timeout, which is an hour here."""
    store = await _opened(server, 3_600_000)
    lease = await create(store, "s1")
    server.kill()
    calls = [store.records.commit(commit(lease, 1, b"x")), store.records.renew("g1", [lease]), store.registry.beat(beat("r1"))]
    calls += [store.admission.reserve("s2", "t1", ("asr",)), store.records.close(lease, "x"), store.records.load("s1")]
    async with asyncio.timeout(60):
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 6
    server.start()
    await until(lambda: _available(store))
    with pytest.raises(SessionMissing):
        await store.records.commit(commit(lease, 1, b"x"))
    assert (await create(store, "s1")).attachment > lease.attachment
    await store.close()


async def test_a_frozen_redis_costs_one_timeout_and_no_answer_is_mixed_up_later(server: ValkeyProcess) -> None:
    store = await _opened(server)
    leases = [await create(store, f"s{n}") for n in range(80)]
    server.pause()
    began = time.monotonic()
    outcomes = await asyncio.gather(*(store.records.commit(commit(lease, 1, b"x")) for lease in leases), return_exceptions=True)
    assert time.monotonic() - began < len(leases) * TIMEOUT_MS / 1000 / 2, "they wait at once, not one after another"
    assert {type(outcome) for outcome in outcomes} == {StoreUnavailable}
    server.resume()
    await until(lambda: _available(store))
    done = await asyncio.gather(
        *(store.records.commit(commit(lease, 2, f"{n}".encode())) for n, lease in enumerate(leases)), return_exceptions=True
    )
    # The commits of before may have reached Redis after all, so either they are there, or the next is refused: never a gap.
    for n, outcome in enumerate(done):
        journal = (await store.records.load(f"s{n}")).journal
        assert [entry.seq for entry in journal] == list(range(1, len(journal) + 1))
        if outcome == Committed(1, 2):
            assert [entry.payload for entry in journal] == [b"x", f"{n}".encode()]
    await store.close()


async def test_opening_without_redis_is_unavailable(server: ValkeyProcess) -> None:
    server.kill()
    with pytest.raises(StoreUnavailable):
        await _opened(server)


async def test_a_full_redis_is_unavailable() -> None:
    with ValkeyProcess("--maxmemory", "3mb", "--maxmemory-policy", "noeviction") as small:
        store = await Store.open(small.url, StoreSettings(redis_timeout_ms=5_000))
        lease = await create(store, "s1")
        with pytest.raises(StoreUnavailable):
            for seq in range(1, 100):
                await store.records.commit(commit(lease, seq, bytes(100_000)))
        await store.close()


async def test_a_redis_with_too_few_replicas_is_unavailable_until_it_has_them(server: ValkeyProcess) -> None:
    async with await _opened(server) as store, Redis.from_url(server.url) as admin:
        await admin.config_set("min-replicas-to-write", "1")
        with pytest.raises(StoreUnavailable):
            await create(store, "s1")
        await admin.config_set("min-replicas-to-write", "0")
        await create(store, "s1")
