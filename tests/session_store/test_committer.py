"""Commits of many sessions share round trips and nothing else."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from session_store import Committed, SequenceConflict, StaleGeneration, Store, StoreUnavailable
from session_store.committer import Committer
from session_store.connection import Call, Connection
from session_store.keys import session_keys
from session_store.settings import StoreSettings
from tests.session_store.helpers import commit, create, store_with


class CountingConnection(Connection):
    """A real connection that counts its round trips, and how many were under way at once."""

    round_trips: list[int]
    under_way = most_under_way = 0

    async def run_many(self, calls):  # type: ignore[no-untyped-def]
        self.round_trips.append(len(calls))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            return await super().run_many(calls)
        finally:
            self.under_way -= 1


@pytest.mark.parametrize("trips", [1, 2])
async def test_what_waits_rides_together_in_order_and_within_bounds(valkey_url: str, store: Store, trips: int) -> None:
    settings = StoreSettings(redis_timeout_ms=5_000, commit_round_trips_count=trips, commit_batch_sessions=4, commit_batch_bytes=100)
    connection = CountingConnection(valkey_url, settings)
    connection.round_trips = []
    committer = Committer(connection, settings)
    calls = [Call("load", session_keys(f"s{n}"), (0,)) for n in range(12)]
    sizes = [10] * 8 + [60, 60, 200, 10]
    answers = await asyncio.gather(*(committer.run(call, size) for call, size in zip(calls, sizes, strict=True)))
    assert answers == [[]] * 12
    assert connection.round_trips == [4, 4, 1, 1, 1, 1]
    assert connection.most_under_way == trips
    await committer.close()
    with pytest.raises(StoreUnavailable):
        await committer.run(calls[0], 0)
    await connection.close()


@pytest.mark.behaviour("X4")
@pytest.mark.parametrize("trips", [1, 2])
async def test_who_asks_again_at_once_is_not_left_waiting(valkey_url: str, store: Store, trips: int) -> None:
    """In the step in which a trip ends nobody may count on it."""
    settings = StoreSettings(redis_timeout_ms=5_000, commit_round_trips_count=trips, commit_batch_sessions=1)
    connection = Connection(valkey_url, settings)
    committer = Committer(connection, settings)

    async def asks_again_and_again(n: int) -> None:
        for _ in range(100):
            assert await committer.run(Call("load", session_keys(f"s{n}"), (0,)), 1) == []

    async with asyncio.timeout(30):
        await asyncio.gather(*(asks_again_and_again(n) for n in range(trips)))
    await committer.close()
    await connection.close()


async def test_one_sessions_error_never_touches_anothers(store: Store) -> None:
    leases = [await create(store, f"s{n}") for n in range(30)]
    await store.records.close(leases[1], "done")
    await create(store, "other", "h9")

    def turn(n: int) -> object:
        lease = leases[n]
        if n % 3 == 1:
            return commit(type(lease)(lease.session_id, lease.attachment + 1, "h1"), 1, b"x")
        return commit(lease, 5 if n % 3 == 2 else 1, b"x")

    outcomes = await asyncio.gather(*(store.records.commit(turn(n)) for n in range(30)), return_exceptions=True)  # type: ignore[arg-type]
    for n, outcome in enumerate(outcomes):
        if n % 3 == 0:
            assert outcome == Committed(1, 1)
        elif n % 3 == 2:
            assert isinstance(outcome, SequenceConflict)
        elif n != 1:
            assert isinstance(outcome, StaleGeneration)


async def test_a_script_that_fails_fails_its_own_session(store: Store, valkey_url: str) -> None:
    leases = [await create(store, f"s{n}") for n in range(3)]
    async with Redis.from_url(valkey_url) as admin:
        await admin.set(session_keys("s1")[2], b"not a list", ex=60)
    outcomes = await asyncio.gather(*(store.records.commit(commit(lease, 1, b"secret")) for lease in leases), return_exceptions=True)
    assert [outcomes[0], outcomes[2]] == [Committed(1, 1)] * 2
    assert "secret" not in str(outcomes[1])
    assert type(outcomes[1]).__name__ == "StoreError"


async def test_scripts_that_redis_forgot_are_loaded_again(store: Store, valkey_url: str) -> None:
    leases = [await create(store, f"s{n}") for n in range(20)]
    async with Redis.from_url(valkey_url) as admin:
        for seq in range(1, 6):
            await admin.script_flush()
            done = await asyncio.gather(*(store.records.commit(commit(lease, seq, b"x")) for lease in leases))
            assert done == [Committed(1, seq)] * 20
        await admin.script_flush()
    assert await store.registry.replicas() == []


async def test_a_cancelled_caller_leaves_the_others_alone(store: Store, valkey_url: str) -> None:
    async with store_with(valkey_url, commit_batch_sessions=2) as narrow:
        leases = [await create(narrow, f"s{n}") for n in range(10)]
        tasks = [asyncio.create_task(narrow.records.commit(commit(lease, 1, b"x"))) for lease in leases]
        await asyncio.sleep(0)
        for task in tasks[5:]:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert outcomes[:5] == [Committed(1, 1)] * 5
        assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes[5:])
        assert await narrow.records.commit(commit(leases[0], 2, b"y")) == Committed(1, 2)


async def test_close_lets_waiting_commits_finish(valkey_url: str, store: Store) -> None:
    async with store_with(valkey_url) as closing:
        lease = await create(closing, "s1")
        task = asyncio.create_task(closing.records.commit(commit(lease, 1, b"x")))
        await asyncio.sleep(0)
    assert await task == Committed(1, 1)
