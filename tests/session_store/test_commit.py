"""The commit: generation, journal with its bounds, checkpoint."""

from __future__ import annotations

import msgspec
import pytest

from session_store import LimitExceeded, Placement, SequenceConflict, SessionClosed, Store
from session_store.tokens import new_token
from tests.session_store.helpers import commit, create, keys_without_ttl, resume, store_with, until


async def test_entries_and_fields_come_back_as_they_were(store: Store) -> None:
    lease = await create(store, "s1")
    binary = bytes(range(256))
    done = await store.records.commit(commit(lease, 1, b"one", binary, items=binary, config=b"c"))
    assert (done.first_kept_seq, done.last_seq) == (1, 2)
    await store.records.commit(msgspec.structs.replace(commit(lease, 3, b"", config=None), entries=[(binary, b"")], hot=b"later"))
    stored = await store.records.load("s1")
    assert [(e.seq, e.head, e.payload) for e in stored.journal] == [(1, b"head", b"one"), (2, b"head", binary), (3, binary, b"")]
    assert (stored.hot, stored.fields) == (b"later", {"items": binary})
    assert [e.seq for e in (await store.records.load("s1", after_seq=2)).journal] == [3]
    assert (await store.records.load("s1", after_seq=9)).journal == []


async def test_a_gap_or_a_repeat_is_refused_whole(store: Store) -> None:
    lease = await create(store, "s1")
    await store.records.commit(commit(lease, 1, b"one", items=b"1"))
    before = await store.records.load("s1")
    for first_seq in (1, 3, 0):
        with pytest.raises(SequenceConflict) as conflict:
            await store.records.commit(commit(lease, first_seq, b"x", items=b"2"))
        assert conflict.value.expected_seq == 2
    assert await store.records.load("s1") == before


async def test_a_numbered_commit_is_written_once_and_never_after_a_later_one(store: Store) -> None:
    lease = await create(store, "s1")
    first = msgspec.structs.replace(commit(lease, 1, b"one", b"two", items=b"1"), number=1)
    second = msgspec.structs.replace(commit(lease, 3, items=b"2"), number=2)
    done = await store.records.commit(first)
    assert await store.records.commit(first) == done, "its answer was lost, it comes again"
    await store.records.commit(second)
    written = await store.records.load("s1")
    assert [entry.payload for entry in written.journal] == [b"one", b"two"] and written.fields == {"items": b"2"}
    assert await store.records.commit(first) == done and await store.records.load("s1") == written
    for astray in (commit(lease, 4, b"four"), commit(lease, 4), commit(lease, 1, b"one")):
        with pytest.raises(SequenceConflict):
            await store.records.commit(msgspec.structs.replace(astray, number=3))
    with pytest.raises(SequenceConflict):  # the store lost the one before
        await store.records.commit(msgspec.structs.replace(commit(lease, 3), number=4))


async def test_the_numbers_of_commits_begin_anew_with_a_lease(store: Store) -> None:
    token = new_token()
    lease = await create(store, "s1", token=token)
    await store.records.commit(msgspec.structs.replace(commit(lease, 1, b"one"), number=1))
    taken, _ = await resume(store, "s1", token, after_seq=1)
    done = await store.records.commit(msgspec.structs.replace(commit(taken.lease, 2, b"two"), number=1))
    assert done.last_seq == 2


async def test_a_commit_without_entries_writes_the_checkpoint_only(store: Store) -> None:
    lease = await create(store, "s1")
    done = await store.records.commit(commit(lease, 1, items=b"1"))
    assert (done.first_kept_seq, done.last_seq) == (1, 0)
    assert (await store.records.load("s1")).fields == {"items": b"1"}


@pytest.mark.behaviour("X15")
async def test_a_commit_without_entries_changes_nothing_where_events_before_it_were_forgotten(store: Store) -> None:
    """Its fields are those that changed since: on top of an older checkpoint they would make one that never was."""
    lease = await create(store, "s1")
    await store.records.commit(commit(lease, 1, b"one", items=b"1", config=b"a"))
    before = await store.records.load("s1")
    for first_seq in (4, 1):
        with pytest.raises(SequenceConflict) as conflict:
            await store.records.commit(commit(lease, first_seq, items=b"2"))
        assert conflict.value.expected_seq == 2
    assert await store.records.load("s1") == before
    await store.records.commit(msgspec.structs.replace(commit(lease, 4, items=b"2", config=b"b"), replace=True))
    stored = await store.records.load("s1")
    assert (stored.record.first_kept_seq, stored.record.last_seq, stored.fields) == (4, 3, {"items": b"2", "config": b"b"})


async def test_replace_starts_a_new_checkpoint_and_journal(store: Store) -> None:
    lease = await create(store, "s1")
    await store.records.commit(commit(lease, 1, b"one", items=b"1", config=b"2"))
    await store.records.commit(msgspec.structs.replace(commit(lease, 7, b"seven", items=b"3"), replace=True))
    stored = await store.records.load("s1")
    assert ([e.seq for e in stored.journal], stored.fields) == ([7], {"items": b"3"})
    assert (stored.record.first_kept_seq, stored.record.journal_bytes) == (7, 9)


async def test_placements_are_replaced_with_the_commit(store: Store) -> None:
    lease = await create(store, "s1")
    placed = {"asr": Placement("r2", "host:r2", 9)}
    await store.records.commit(msgspec.structs.replace(commit(lease, 1), placements=placed))
    assert (await store.records.load("s1")).record.placements == placed


@pytest.mark.behaviour("R2")
async def test_the_journal_is_bounded_by_bytes_and_says_where_it_begins(store: Store, valkey_url: str) -> None:
    async with store_with(valkey_url, journal_max_bytes=1_000) as small:
        lease = await create(small, "s1")
        for seq in range(1, 101):
            done = await small.records.commit(commit(lease, seq, bytes(96)))
            assert (done.first_kept_seq, done.last_seq) == (max(1, seq - 9), seq)
        stored = await small.records.load("s1")
        assert [e.seq for e in stored.journal] == list(range(91, 101))
        assert stored.record.journal_bytes == 1_000
        done = await small.records.commit(commit(lease, 101, bytes(2_000)))
        assert (done.first_kept_seq, done.last_seq) == (102, 101)
        done = await small.records.commit(commit(lease, 102, b"x"))
        assert (done.first_kept_seq, done.last_seq) == (102, 102)
        assert await keys_without_ttl(valkey_url) == []


@pytest.mark.behaviour("R2")
async def test_many_entries_of_one_commit_are_trimmed_alike(store: Store, valkey_url: str) -> None:
    async with store_with(valkey_url, journal_max_bytes=1_000) as small:
        lease = await create(small, "s1")
        done = await small.records.commit(commit(lease, 1, *([bytes(96)] * 3_000)))
        assert (done.first_kept_seq, done.last_seq) == (2_991, 3_000)
        assert [e.seq for e in (await small.records.load("s1")).journal] == list(range(2_991, 3_001))


@pytest.mark.behaviour("R2")
async def test_the_journal_is_bounded_by_age_at_commit_and_at_renewal(store: Store, valkey_url: str) -> None:
    async with store_with(valkey_url, journal_max_age_ms=40) as brief:
        lease = await create(brief, "s1")
        await brief.records.commit(commit(lease, 1, b"one", b"two"))

        async def dropped_at_commit() -> bool:
            return (await brief.records.commit(commit(lease, 3))).first_kept_seq == 3

        await until(dropped_at_commit)
        await brief.records.commit(commit(lease, 3, b"three"))

        async def dropped_at_renewal() -> bool:
            await brief.records.renew("g1", [lease])
            return (await brief.records.load("s1")).journal == []

        await until(dropped_at_renewal)
        record = (await brief.records.load("s1")).record
        assert (record.first_kept_seq, record.last_seq, record.journal_bytes) == (4, 3, 0)


@pytest.mark.behaviour("R2")
async def test_what_the_client_acknowledged_is_dropped(store: Store) -> None:
    lease = await create(store, "s1")
    await store.records.commit(commit(lease, 1, b"1", b"2", b"3"))
    done = await store.records.commit(msgspec.structs.replace(commit(lease, 4, b"4"), acked_seq=2))
    assert (done.first_kept_seq, done.last_seq) == (3, 4)
    assert [e.seq for e in (await store.records.load("s1", after_seq=2)).journal] == [3, 4]


async def test_limits_at_the_bound_and_above(store: Store, valkey_url: str) -> None:
    async with store_with(valkey_url, hot_max_bytes=8, commit_max_bytes=100) as small:
        lease = await create(small, "s1")
        at_bound = msgspec.structs.replace(commit(lease, 1), hot=bytes(8), entries=[(b"", bytes(92))])
        await small.records.commit(at_bound)
        with pytest.raises(LimitExceeded) as hot:
            await small.records.commit(msgspec.structs.replace(at_bound, hot=bytes(9), first_seq=2))
        with pytest.raises(LimitExceeded) as whole:
            await small.records.commit(msgspec.structs.replace(at_bound, entries=[(b"", bytes(93))], first_seq=2))
        assert (hot.value.setting, whole.value.setting) == ("hot_max_bytes", "commit_max_bytes")
        assert (await small.records.load("s1")).record.last_seq == 1


async def test_a_closed_session_takes_no_commit(store: Store) -> None:
    lease = await create(store, "s1")
    await store.records.close(lease, "client_close")
    with pytest.raises(SessionClosed) as closed:
        await store.records.commit(commit(lease, 1, b"x"))
    assert closed.value.reason == "client_close"
