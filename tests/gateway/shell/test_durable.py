"""The commit log over a real store: what it does not take costs durability, what another holder has costs the session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from gateway.actor import JournalEntry, StaleLease
from gateway.conversation.checkpoint import Checkpoint
from gateway.durable import RETRY_S, STALLED_S, StoreLog
from gateway.graph import Graph
from gateway.opening import Opened, Opener
from gateway.pool import StagePool
from gateway.profile_file import load_profile_file
from gateway.settings import Settings
from session_store import Commit, Committed, Placement, Store
from session_store.errors import StoreUnavailable
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


@pytest.mark.behaviour("X3")
async def test_where_a_stage_went_is_written_until_it_is_durable(store: Store, opener: Opener, opened: Opened, now: list[float]) -> None:
    """A takeover must find the stage where it is now, even if the commit that said so was lost."""
    log = StoreLog(store, opener, opened, LIMIT_S)
    opened.placements["llm"], opened.moved = Placement("thinker-2", "127.0.0.1:2", 5), True
    assert not await log.commit(1, entries(1, 5, MIB), CHECKPOINT, 0)
    now[0] += RETRY_S
    assert await log.commit(6, entries(6, 1), CHECKPOINT, 0)
    assert (await store.records.load("sess_1")).record.placements == opened.placements
    assert opened.take_moved() is None


@pytest.mark.behaviour("X6")
async def test_a_process_that_slept_asks_again_before_it_calls_the_store_away(
    store: Store, opener: Opener, opened: Opened, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its timeout ran out while it was stopped, and somebody took the session over meanwhile: it must not go on by itself."""
    log, commit, tries = StoreLog(store, opener, opened, LIMIT_S), store.records.commit, 0

    async def slept(asked: Commit) -> Committed:
        nonlocal tries
        tries += 1
        if tries == 1:
            now[0] += store.settings.redis_timeout_ms / 1000 + STALLED_S
            raise StoreUnavailable("timeout")
        return await commit(asked)

    monkeypatch.setattr(store.records, "commit", slept)
    token = new_token()
    await commit(Commit(opened.lease, 1, [], b"hot", {}))
    await store.records.takeover(
        "sess_1", token=opened.token, new_digest=digest(token), tenant="anonymous", gateway_id="gw_2", holder_id="h2", after_seq=0
    )
    with pytest.raises(StaleLease):
        await log.commit(1, entries(1, 1), CHECKPOINT, 0)
    assert tries == 2


@pytest.mark.behaviour("A2", "X6")
async def test_a_commit_whose_answer_was_lost_is_asked_again_and_written_once(
    store: Store, opener: Opener, opened: Opened, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process slept between the store's answer and its reading: nothing of durability is lost by that."""
    log, commit, tries = StoreLog(store, opener, opened, LIMIT_S), store.records.commit, 0
    assert await log.commit(1, entries(1, 1), CHECKPOINT, 0)

    async def unheard(asked: Commit) -> Committed:
        nonlocal tries
        tries += 1
        done = await commit(asked)
        if tries == 1:
            now[0] += store.settings.redis_timeout_ms / 1000 + STALLED_S
            raise StoreUnavailable("timeout")
        return done

    monkeypatch.setattr(store.records, "commit", unheard)
    assert await log.commit(2, entries(2, 2), CHECKPOINT, 0) and tries == 2
    assert await log.commit(4, entries(4, 1), CHECKPOINT, 0)
    assert [entry.seq for entry in (await store.records.load("sess_1")).journal] == [1, 2, 3, 4]


@pytest.mark.behaviour("X4")
async def test_a_commit_that_comes_late_does_not_overwrite_a_later_one(
    store: Store, opener: Opener, opened: Opened, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store was away, and does what it was asked before when it is back: after what it was asked since."""
    log, commit, late = StoreLog(store, opener, opened, LIMIT_S), store.records.commit, []

    async def away(asked: Commit) -> Committed:
        late.append(asked)
        raise StoreUnavailable("timeout")

    monkeypatch.setattr(store.records, "commit", away)
    assert not await log.commit(1, entries(1, 1), Checkpoint(b"old", {"config": b"old"}), 0)
    monkeypatch.setattr(store.records, "commit", commit)
    now[0] += RETRY_S
    assert await log.commit(2, entries(2, 1), Checkpoint(b"new", {"config": b"new"}), 0)
    await commit(late[0])
    stored = await store.records.load("sess_1")
    assert (stored.hot, stored.fields["config"]) == (b"new", b"new") and [entry.seq for entry in stored.journal] == [2]


async def test_a_session_without_durability_for_too_long_is_overdue(store: Store, opener: Opener, opened: Opened, now: list[float]) -> None:
    log = StoreLog(store, opener, opened, LIMIT_S)
    assert not await log.commit(1, entries(1, 5, MIB), CHECKPOINT, 0) and not log.overdue
    now[0] += LIMIT_S + 1
    assert log.overdue
    assert await log.commit(6, entries(6, 1), CHECKPOINT, 0) and not log.overdue
