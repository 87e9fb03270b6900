"""Takeover: who may, from where, and what it leaves behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from session_store import (
    InvalidToken,
    Lease,
    NoCheckpoint,
    Placement,
    ReplayGap,
    SessionClosed,
    SessionExpired,
    SessionMissing,
    StaleGeneration,
    Store,
)
from session_store.keys import POOL, session_keys
from session_store.tokens import digest, new_token
from tests.session_store.helpers import beat, commit, create, forget_silence, keys_without_ttl, pass_deadline, resume, store_with

TOKEN = new_token()


@pytest.mark.behaviour("R6")
@pytest.mark.parametrize("detached", [False, True])
async def test_a_takeover_fences_the_old_holder_and_reads_everything(store: Store, valkey_url: str, detached: bool) -> None:
    placed = {"asr": Placement("r1", "host:r1", 7)}
    old = await create(store, "s1", placements=placed, token=TOKEN)
    await store.records.commit(commit(old, 1, b"one", b"two", b"three", items=b"i"))
    if detached:
        assert await store.records.detach(old)
    taken, _ = await resume(store, "s1", TOKEN, after_seq=1)
    record = taken.stored.record
    assert taken.lease == Lease("s1", record.attachment, "h2")
    assert taken.lease.attachment > old.attachment
    assert (record.state, record.gateway_id, record.holder_id, record.grace_deadline_ms) == ("attached", "g2", "h2", 0)
    assert (record.placements, record.tenant, record.profile) == (placed, "t1", "profile")
    assert (taken.gap, taken.stored.hot, taken.stored.fields) == (False, b"hot", {"items": b"i"})
    assert [(e.seq, e.payload) for e in taken.stored.journal] == [(2, b"two"), (3, b"three")]
    assert taken.stored == await store.records.load("s1", 1)
    with pytest.raises(StaleGeneration):
        await store.records.commit(commit(old, 4, b"x"))
    # The old one's late detach and close do nothing.
    assert not await store.records.detach(old)
    assert not await store.records.begin_close(old, "late")
    assert not await store.records.close(old, "late")
    assert (await store.records.renew("g1", [old])).lost == {"s1": ""}
    await store.records.commit(commit(taken.lease, 4, b"four"))
    assert await keys_without_ttl(valkey_url) == []


async def test_a_takeover_puts_the_deadlines_off(store: Store, valkey_url: str) -> None:
    lease = await create(store, "s1", token=TOKEN)
    await store.records.detach(lease)
    async with Redis.from_url(valkey_url) as admin:
        seconds, micros = await admin.time()
        now_ms = seconds * 1000 + micros // 1000
        await admin.hset(session_keys("s1")[0], mapping={"lease_deadline_ms": now_ms - 20_000, "idle_deadline_ms": 10**15})
    record = (await resume(store, "s1", TOKEN))[0].stored.record
    assert record.lease_deadline_ms >= now_ms + 15_000
    assert now_ms + 600_000 <= record.idle_deadline_ms < 10**15
    assert record.grace_deadline_ms == 0


@pytest.mark.behaviour("L1")
@pytest.mark.parametrize(
    ("name", "reason"), [("lease", "lease_expired"), ("grace", "disconnect_grace_expired"), ("idle", "idle_ttl_expired")]
)
async def test_nobody_resumes_after_a_deadline_unless_redis_was_away(store: Store, valkey_url: str, name: str, reason: str) -> None:
    lease = await create(store, "s1", token=TOKEN)
    await store.records.detach(lease)
    await pass_deadline(valkey_url, "s1", name)
    await store.registry.beat(beat("r1"))
    await forget_silence(valkey_url)
    with pytest.raises(SessionExpired) as expired:
        await resume(store, "s1", TOKEN)
    assert expired.value.reason == reason
    async with Redis.from_url(valkey_url) as admin:
        await admin.hset(f"{POOL}:clock", "muted_until_ms", 10**15)
    taken, _ = await resume(store, "s1", TOKEN)
    assert taken.lease.attachment > lease.attachment


@pytest.mark.behaviour("R9")
async def test_a_bad_token_changes_nothing_and_tells_nothing(store: Store) -> None:
    await create(store, "s1", token=TOKEN)
    await create(store, "s2")
    before = await store.records.load("s1")
    said = set()
    for session, tenant, token in (("s1", "t1", new_token()), ("s1", "t2", TOKEN), ("s1", "t1", ""), ("s2", "t1", ""), ("s2", "t1", TOKEN)):
        with pytest.raises(InvalidToken) as refused:
            await store.records.takeover(
                session, token=token, new_digest=digest("n"), tenant=tenant, gateway_id="g2", holder_id="h2", after_seq=99
            )
        said.add((repr(refused.value), str(vars(refused.value))))
    assert len(said) == 1
    assert await store.records.load("s1") == before


@pytest.mark.behaviour("X4", "R9")
async def test_a_session_without_a_checkpoint_stays_with_its_holder(store: Store, valkey_url: str) -> None:
    """Whoever took it could not go on, and the holder, who can, would have lost it."""
    lease = await create(store, "s1", token=TOKEN)
    async with Redis.from_url(valkey_url) as admin:
        await admin.flushall()
    await store.records.restore(lease, "g1", "t1", "profile", {}, token_digest=digest(TOKEN))
    before = await store.records.load("s1")
    with pytest.raises(NoCheckpoint):
        await resume(store, "s1", TOKEN, accept_gap=True)
    assert await store.records.load("s1") == before
    await store.records.commit(msgspec.structs.replace(commit(lease, 1), replace=True))
    await resume(store, "s1", TOKEN)


async def test_a_closed_session_tells_its_reason_to_its_tenant_only(store: Store) -> None:
    lease = await create(store, "s1", token=TOKEN)
    await store.records.close(lease, "client_close")
    with pytest.raises(SessionClosed) as closed:
        await resume(store, "s1", TOKEN)
    assert closed.value.reason == "client_close"
    with pytest.raises(InvalidToken):
        await store.records.takeover("s1", token=TOKEN, new_digest=digest("n"), tenant="t2", gateway_id="g", holder_id="h", after_seq=0)
    for unknown in ("s9", "", "no such id", "a}b"):
        with pytest.raises(SessionMissing):
            await resume(store, unknown, TOKEN)


@pytest.mark.behaviour("R1")
async def test_the_old_token_stays_until_the_first_message_after_the_resume(store: Store) -> None:
    await create(store, "s1", token=TOKEN)
    lost_answer, never_seen = await resume(store, "s1", TOKEN)
    again, second = await resume(store, "s1", TOKEN, "h3")
    assert again.lease.attachment > lost_answer.lease.attachment
    assert not await store.records.settle_token(lost_answer.lease)
    assert await store.records.settle_token(again.lease)
    assert await store.records.settle_token(again.lease)
    for revoked in (TOKEN, never_seen):
        with pytest.raises(InvalidToken):
            await resume(store, "s1", revoked)
    await resume(store, "s1", second)


@pytest.mark.behaviour("R10")
async def test_the_token_of_any_answer_that_may_have_come_is_good_until_one_is_settled(store: Store) -> None:
    await create(store, "s1", token=TOKEN)
    _, heard = await resume(store, "s1", TOKEN)
    late, _ = await resume(store, "s1", TOKEN, "h3")
    # A delayed first attempt took the session from the one that the client heard of, and fails: the grace begins again.
    assert await store.records.detach(late.lease)
    back, newest = await resume(store, "s1", heard, "h4")
    for _ in range(10):
        back, newest = await resume(store, "s1", newest, "h5")
    await store.records.settle_token(back.lease)
    with pytest.raises(InvalidToken):
        await resume(store, "s1", heard)
    await resume(store, "s1", newest)


@pytest.mark.behaviour("R2", "R8")
async def test_every_start_is_exact_or_an_announced_gap(store: Store, valkey_url: str) -> None:
    async with store_with(valkey_url, journal_max_bytes=30) as small:
        lease = await create(small, "s1", token=TOKEN)
        token = TOKEN
        await small.records.commit(msgspec.structs.replace(commit(lease, 1, *([b"x" * 6] * 9)), acked_seq=0))
        for after_seq in (-1, 0, 5, 6, 7, 8, 9, 10, 2**53):
            if 6 <= after_seq <= 9:
                taken, token = await resume(small, "s1", token, after_seq=after_seq)
                assert [e.seq for e in taken.stored.journal] == list(range(after_seq + 1, 10))
                assert not taken.gap
                continue
            before = await small.records.load("s1")
            with pytest.raises(ReplayGap) as gap:
                await resume(small, "s1", token, after_seq=after_seq)
            assert (gap.value.first_kept_seq, gap.value.last_seq) == (7, 9)
            assert await small.records.load("s1") == before
            taken, token = await resume(small, "s1", token, after_seq=after_seq, accept_gap=True)
            assert taken.gap
            assert taken.stored.record.first_kept_seq == 7
            assert [e.seq for e in taken.stored.journal] == ([7, 8, 9] if after_seq < 9 else [])


async def test_an_empty_journal_goes_on_at_its_end_only(store: Store) -> None:
    lease = await create(store, "s1", token=TOKEN)
    taken, token = await resume(store, "s1", TOKEN)
    assert (taken.gap, taken.stored.journal) == (False, [])
    await store.records.commit(msgspec.structs.replace(commit(taken.lease, 1, b"1", b"2"), acked_seq=2))
    with pytest.raises(ReplayGap):
        await resume(store, "s1", token, after_seq=1)
    taken, _ = await resume(store, "s1", token, after_seq=2)
    assert taken.lease.attachment > lease.attachment


@pytest.mark.behaviour("L3", "R5")
async def test_of_many_takeovers_at_once_one_has_the_session(store: Store, valkey_url: str) -> None:
    token = TOKEN
    await create(store, "s1", token=token)
    async with store_with(valkey_url) as other:
        for generation in range(10):
            stores = (store, other)
            answers = await asyncio.gather(*(resume(stores[n % 2], "s1", token, f"h{generation}_{n}") for n in range(20)))
            leases = [taken.lease for taken, _ in answers]
            assert len({lease.attachment for lease in leases}) == 20
            seq = generation + 1
            outcomes = await asyncio.gather(
                *(stores[n % 2].records.commit(commit(lease, seq, b"x")) for n, lease in enumerate(leases)), return_exceptions=True
            )
            winners = [n for n, outcome in enumerate(outcomes) if not isinstance(outcome, StaleGeneration)]
            assert winners == [max(range(20), key=lambda n: leases[n].attachment)]
            # No loser detaches it or settles the tokens, and once the winner did, nobody else's token is good.
            losers = [lease for n, lease in enumerate(leases) if n != winners[0]]
            assert not any(await asyncio.gather(*(store.records.detach(lease) for lease in losers)))
            assert not any(await asyncio.gather(*(store.records.settle_token(lease) for lease in losers)))
            assert (await store.records.load("s1")).record.state == "attached"
            assert await store.records.settle_token(leases[winners[0]])
            for n, (_, new) in enumerate(answers):
                if n != winners[0]:
                    with pytest.raises(InvalidToken):
                        await resume(store, "s1", new)
            with pytest.raises(InvalidToken):
                await resume(store, "s1", token)
            token = answers[winners[0]][1]


async def _attempt(name: str, work: Coroutine[Any, Any, Any]) -> tuple[str, Any]:
    try:
        return name, await work
    except (SessionClosed, SessionExpired):
        return name, None


@pytest.mark.behaviour("L4", "L9")
@pytest.mark.parametrize("seed", range(4))
async def test_takeover_close_expire_and_reap_end_a_session_once(store: Store, valkey_url: str, seed: int) -> None:
    await store.registry.beat(beat("r1"))
    await forget_silence(valkey_url)
    rng = random.Random(seed)
    async with store_with(valkey_url) as other:
        for n in range(20):
            session = f"s{n}"
            lease = await create(store, session, token=TOKEN)
            await store.records.commit(commit(lease, 1, b"said"))
            await store.records.detach(lease)
            records = (store.records, other.records)
            racers = [("close", records[i].close(lease, "close")) for i in range(2) if n % 2]
            racers += [("begin", records[i].begin_close(lease, "begin")) for i in range(2) if not n % 2]
            racers += [("takeover", resume((store, other)[i % 2], session, TOKEN, f"t{i}")) for i in range(3)]
            racers += [("expire", records[i].expire(session)) for i in range(2)]
            racers += [("reap", records[i].reap(session, "g3", f"r{i}")) for i in range(2)]
            rng.shuffle(racers)
            began = [asyncio.ensure_future(_attempt(name, work)) for name, work in racers]
            await pass_deadline(valkey_url, session, "grace")
            outcomes = await asyncio.gather(*began)
            ends = [(name, outcome) for name, outcome in outcomes if outcome and name != "takeover"]
            taken = [outcome[0].lease for name, outcome in outcomes if name == "takeover" and outcome]
            state = (await store.records.load(session)).record.state
            assert len(ends) == (state in ("closing", "closed"))
            owner = max(taken, key=lambda one: one.attachment, default=lease)
            if ends and ends[0][0] in ("close", "expire"):
                assert state == "closed"
                continue
            if ends and ends[0][0] == "reap":
                owner = ends[0][1].lease
            # One of them owns the clean-up now, and only its close counts.
            closers = [lease, *taken, owner]
            closed = await asyncio.gather(*(records[i % 2].close(one, "end") for i, one in enumerate(closers)))
            assert closed.count(True) == 1
            assert closers[closed.index(True)] == owner
            assert (await store.records.load(session)).record.reason == {"begin": "begin", "reap": "disconnect_grace_expired"}.get(
                ends[0][0] if ends else "", "end"
            )
