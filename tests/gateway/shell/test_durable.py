"""The commit log over a real store: what it does not take costs durability, what another holder has costs the session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from gateway.actor import JournalEntry, StaleLease
from gateway.conversation.checkpoint import Checkpoint
from gateway.durable import RETRY_S, StoreLog
from gateway.graph import Graph
from gateway.opening import Opened, Opener
from gateway.profile_file import load_profile_file
from gateway.settings import Settings
from gateway.stages import StagePool
from session_store import Store
from session_store.tokens import digest, new_token

MIB = 1024 * 1024
LIMIT_S = 120.0
CHECKPOINT = Checkpoint(b"hot", {"config": b"c"})


def entries(first: int, count: int, size: int = 1) -> list[JournalEntry]:
    return [(b"head %d" % seq, bytes(size)) for seq in range(first, first + count)]


@pytest.fixture
async def opener(store: Store) -> AsyncIterator[Opener]:
    profile = load_profile_file(Path(__file__).parents[3] / "profiles" / "embedded.yaml")
    pool = StagePool()
    yield Opener(store, pool, Graph(profile), profile.name, "gw_1", Settings())
    await pool.close()


@pytest.fixture
async def opened(store: Store) -> Opened:
    token = new_token()
    lease = await store.records.create("sess_1", "gw_1", "holder", "anonymous", "embedded", {}, token_digest=digest(token))
    return Opened("sess_1", "anonymous", lease, lease.attachment, {}, {}, token)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The log's clock: its one value."""
    clock = [100.0]
    monkeypatch.setattr("gateway.durable.time.monotonic", lambda: clock[0])
    return clock


async def test_a_commit_that_is_too_large_is_not_durable_and_the_next_is(
    store: Store, opener: Opener, opened: Opened, now: list[float]
) -> None:
    log = StoreLog(store, opener, opened, LIMIT_S)
    assert await log.commit(1, entries(1, 1), CHECKPOINT, 0)
    assert not await log.commit(2, entries(2, 5, MIB), CHECKPOINT, 0)
    assert not await log.commit(7, entries(7, 1), CHECKPOINT, 0), "it waits before it tries again"
    now[0] += RETRY_S
    assert await log.commit(8, entries(8, 2), CHECKPOINT, 0)
    kept = await store.records.load("sess_1")
    assert [entry.seq for entry in kept.journal] == [8, 9], "a new journal: nothing pretends that there was no gap"


@pytest.mark.behaviour("X4")
async def test_a_store_that_lost_its_data_is_told_again(valkey_url: str, store: Store, opener: Opener, opened: Opened) -> None:
    log = StoreLog(store, opener, opened, LIMIT_S)
    assert await log.commit(1, entries(1, 3), CHECKPOINT, 0)
    before = opened.lease
    async with Redis.from_url(valkey_url) as admin:
        await admin.flushall()
    assert not await log.commit(4, entries(4, 1), CHECKPOINT, 0)
    assert opened.lease == before, "nobody else can have it: it stays ours under the same lease"
    assert await log.commit(5, entries(5, 1), CHECKPOINT, 0)
    kept = await store.records.load("sess_1")
    assert kept.record.state == "attached" and [entry.seq for entry in kept.journal] == [5]


@pytest.mark.behaviour("X4")
async def test_a_session_that_another_holder_took_is_not_taken_back(valkey_url: str, store: Store, opener: Opener, opened: Opened) -> None:
    log = StoreLog(store, opener, opened, LIMIT_S)
    async with Redis.from_url(valkey_url) as admin:
        await admin.flushall()
    await store.records.create("sess_1", "gw_2", "another", "anonymous", "embedded", {})
    with pytest.raises(StaleLease):
        await log.commit(1, entries(1, 1), CHECKPOINT, 0)


async def test_a_closed_session_is_over(store: Store, opener: Opener, opened: Opened) -> None:
    await store.records.close(opened.lease, "done")
    with pytest.raises(StaleLease):
        await StoreLog(store, opener, opened, LIMIT_S).commit(1, entries(1, 1), CHECKPOINT, 0)
