"""Redis forgets its last writes (a failover): one holder, always the youngest, and a lost tail is announced."""

from __future__ import annotations

import msgspec
import pytest
from redis.asyncio import Redis

from session_store import InvalidToken, LeaseForgotten, Placement, ReplayGap, SessionClosed, SessionMissing, StaleGeneration, Store
from session_store.tokens import digest, new_token
from tests.session_store.helpers import Snapshot, beat, commit, create, forget_silence, keys_without_ttl, pass_deadline, resume

TOKEN = new_token()
PLACED = {"asr": Placement("r1", "host:r1", 7)}


@pytest.fixture
async def lagging(valkey_url: str) -> Snapshot:
    return Snapshot(valkey_url)


@pytest.mark.behaviour("X15")
async def test_a_forgotten_takeover_is_restored_and_the_old_holder_stays_fenced(store: Store, valkey_url: str, lagging: Snapshot) -> None:
    old = await create(store, "s1", placements=PLACED, token=TOKEN)
    await store.records.commit(commit(old, 1, b"one"))
    await lagging.take()
    taken, token = await resume(store, "s1", TOKEN, after_seq=1)
    await store.records.commit(commit(taken.lease, 2, b"two"))
    await lagging.fail_over()

    # For Redis the old holder is the holder; the younger lease is not stale but forgotten, and nobody tells its gateway to drop it.
    with pytest.raises(LeaseForgotten):
        await store.records.commit(commit(taken.lease, 3, b"three"))
    assert (await store.records.renew("g2", [taken.lease])).lost == {}
    assert not await store.records.close(taken.lease, "no")
    await store.records.commit(commit(old, 2, b"zombie"))
    for _ in range(2):
        await store.records.restore(taken.lease, "g2", "t1", "profile", PLACED, token_digest=digest(token))
    with pytest.raises(StaleGeneration) as stale:
        await store.records.commit(commit(old, 3, b"zombie"))
    assert not isinstance(stale.value, LeaseForgotten)
    with pytest.raises(StaleGeneration):
        await store.records.restore(old, "g1", "t1", "profile", PLACED)
    assert (await store.records.renew("g1", [old])).lost == {"s1": ""}
    await store.records.commit(msgspec.structs.replace(commit(taken.lease, 3, b"three", items=b"i"), replace=True))
    stored = await store.records.load("s1")
    assert [(e.seq, e.payload) for e in stored.journal] == [(3, b"three")]
    assert (stored.record.gateway_id, stored.record.holder_id, stored.fields) == ("g2", "h2", {"items": b"i"})
    with pytest.raises(InvalidToken):
        await resume(store, "s1", TOKEN, after_seq=3)
    again, _ = await resume(store, "s1", token, "h3", after_seq=3)
    assert again.lease.attachment > taken.lease.attachment
    assert await keys_without_ttl(valkey_url) == []


@pytest.mark.behaviour("X15")
async def test_a_takeover_after_a_rollback_is_above_every_lease_ever_given(store: Store, lagging: Snapshot) -> None:
    old = await create(store, "s1", token=TOKEN)
    await lagging.take()
    given = [old.attachment]
    leases = [old]
    for n in range(5):
        taken, _ = await resume(store, "s1", TOKEN, f"h{n}")
        assert taken.lease.attachment > max(given)
        given.append(taken.lease.attachment)
        leases.append(taken.lease)
        await lagging.fail_over()
    winner, _ = await resume(store, "s1", TOKEN, "winner")
    for lease in leases:
        with pytest.raises(StaleGeneration):
            await store.records.restore(lease, "g", "t1", "profile", {})
        with pytest.raises(StaleGeneration):
            await store.records.commit(commit(lease, 1, b"x"))
    await store.records.commit(commit(winner.lease, 1, b"x"))


@pytest.mark.behaviour("X15", "R8")
async def test_a_lost_tail_is_announced_to_who_resumes(store: Store, lagging: Snapshot) -> None:
    lease = await create(store, "s1", token=TOKEN)
    await store.records.commit(commit(lease, 1, b"one", b"two"))
    await lagging.take()
    await store.records.commit(commit(lease, 3, b"three", b"four"))
    await lagging.fail_over()
    with pytest.raises(ReplayGap) as gap:
        await resume(store, "s1", TOKEN, after_seq=4)
    assert (gap.value.first_kept_seq, gap.value.last_seq) == (1, 2)
    taken, _ = await resume(store, "s1", TOKEN, after_seq=4, accept_gap=True)
    assert (taken.gap, taken.stored.journal, taken.stored.record.last_seq) == (True, [], 2)
    # No number means two things: the new journal begins above what the client has.
    await store.records.commit(msgspec.structs.replace(commit(taken.lease, 5, b"five"), replace=True))
    assert [e.seq for e in (await store.records.load("s1")).journal] == [5]


@pytest.mark.behaviour("X15", "R1")
async def test_tokens_that_were_revoked_before_the_rollback_stay_so(store: Store, lagging: Snapshot) -> None:
    await create(store, "s1", token=TOKEN)
    _, second = await resume(store, "s1", TOKEN)
    await lagging.take()
    taken, third = await resume(store, "s1", second, "h3")
    assert await store.records.settle_token(taken.lease)
    await lagging.fail_over()
    assert await store.records.restore(taken.lease, "g2", "t1", "profile", {}, token_digest=digest(third))
    assert not await store.records.restore(taken.lease, "g2", "t1", "profile", {}, token_digest=digest(third))
    for revoked in (TOKEN, second):
        with pytest.raises(InvalidToken):
            await resume(store, "s1", revoked)
    await resume(store, "s1", third)


@pytest.mark.behaviour("X4")
async def test_a_wiped_record_is_restored_under_the_same_lease(store: Store, valkey_url: str) -> None:
    lease = await create(store, "s1", placements=PLACED, token=TOKEN)
    async with Redis.from_url(valkey_url) as admin:
        await admin.flushall()
    with pytest.raises(SessionMissing):
        await store.records.commit(commit(lease, 7, b"x"))
    assert (await store.records.renew("g1", [lease])).lost == {}
    await store.records.restore(lease, "g1", "t1", "profile", PLACED, token_digest=digest(TOKEN))
    await store.records.commit(msgspec.structs.replace(commit(lease, 7, b"seven"), replace=True))
    taken, _ = await resume(store, "s1", TOKEN, after_seq=6)
    assert [e.seq for e in taken.stored.journal] == [7]
    assert taken.stored.record.placements == PLACED
    assert await keys_without_ttl(valkey_url) == []


@pytest.mark.behaviour("X15", "L4")
async def test_what_is_over_is_not_restored(store: Store, valkey_url: str) -> None:
    await store.registry.beat(beat("r1"))
    await forget_silence(valkey_url)
    lease = await create(store, "s1", token=TOKEN)
    await pass_deadline(valkey_url, "s1", "lease")
    reaped = await store.records.reap("s1", "g2", "h2")
    assert reaped is not None
    for _ in range(2):
        with pytest.raises(SessionClosed) as closed:
            await store.records.restore(msgspec.structs.replace(lease, attachment=reaped.lease.attachment + 1), "g1", "t1", "p", {})
        assert closed.value.reason == "lease_expired"
        await store.records.close(reaped.lease, "reaped")


@pytest.mark.behaviour("X15")
async def test_a_forgotten_end_ends_again_without_a_second_cleaner_at_once(store: Store, valkey_url: str, lagging: Snapshot) -> None:
    await store.registry.beat(beat("r1"))
    await forget_silence(valkey_url)
    lease = await create(store, "s1", token=TOKEN)
    await pass_deadline(valkey_url, "s1", "lease")
    await lagging.take()
    first = await store.records.reap("s1", "g2", "h2")
    await lagging.fail_over()
    second = await store.records.reap("s1", "g3", "h3")
    assert first is not None
    assert second is not None
    assert second.lease.attachment > first.lease.attachment > lease.attachment
    assert not await store.records.close(first.lease, "x")
    assert await store.records.close(second.lease, "x")
