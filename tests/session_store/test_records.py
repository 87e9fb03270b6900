"""Records: create, renew, detach, expire, close, load."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from session_store import Lease, Placement, SessionClosed, SessionExists, SessionMissing, StaleGeneration, Store
from session_store.tokens import digest
from tests.session_store.helpers import (
    beat,
    commit,
    create,
    forget_silence,
    keys_without_ttl,
    pass_deadline,
    slot_members,
    store_with,
    until,
    used,
)


async def test_a_record_has_all_that_a_takeover_will_read(store: Store) -> None:
    placed = {"asr": Placement("r1", "host:r1", 7)}
    lease = await store.records.create("s1", "g1", "h1", "t1", "embedded", placed, token_digest=digest("t"))
    record = (await store.records.load("s1")).record
    assert (record.session_id, record.state, record.attachment, record.holder_id) == ("s1", "attached", lease.attachment, "h1")
    assert (record.gateway_id, record.tenant, record.profile, record.placements) == ("g1", "t1", "embedded", placed)
    assert record.lease_deadline_ms == record.created_ms + 15_000
    assert record.idle_deadline_ms == record.created_ms + 600_000
    assert (record.grace_deadline_ms, record.closed_ms, record.reason) == (0, 0, "")


async def test_create_is_idempotent_for_its_holder_only(store: Store) -> None:
    lease = await create(store, "s1")
    assert await create(store, "s1") == lease
    with pytest.raises(SessionExists):
        await create(store, "s1", "h2")
    await store.records.close(lease, "done")
    with pytest.raises(SessionClosed) as closed:
        await create(store, "s1")
    assert closed.value.reason == "done"


async def test_concurrent_creates_have_one_winner(store: Store) -> None:
    outcomes = await asyncio.gather(*(create(store, "s1", f"h{n}") for n in range(50)), return_exceptions=True)
    leases = [outcome for outcome in outcomes if isinstance(outcome, Lease)]
    assert len(leases) == 1
    assert sum(isinstance(outcome, SessionExists) for outcome in outcomes) == 49
    assert (await store.records.load("s1")).record.holder_id == leases[0].holder_id


@pytest.mark.behaviour("L4")
async def test_a_hundred_closes_have_one_winner(store: Store, valkey_url: str) -> None:
    lease = await create(store, "s1")
    await store.records.commit(commit(lease, 1, b"speech", items=b"x"))
    async with store_with(valkey_url) as other:
        stores = (store, other)
        won = await asyncio.gather(*(stores[n % 2].records.close(lease, f"reason{n}") for n in range(100)))
    assert won.count(True) == 1
    stored = await store.records.load("s1")
    assert (stored.record.state, stored.record.reason) == ("closed", f"reason{won.index(True)}")
    assert (stored.hot, stored.fields, stored.journal) == (b"", {}, [])


@pytest.mark.behaviour("L5")
async def test_an_expired_session_holds_its_slot_until_it_is_released(store: Store, valkey_url: str) -> None:
    await store.registry.beat(beat("r1", slots=1))
    await forget_silence(valkey_url)
    for n in range(10):
        session = f"s{n}"
        placed = (await store.admission.reserve(session, "t1", ("asr",))).placements
        await store.admission.confirm(session)
        lease = await create(store, session, placements=placed)
        await store.records.detach(lease, grace_ms=1)
        await until(lambda session=session: _over(store, session))
        ends = await asyncio.gather(
            *(end for _ in range(5) for end in (store.records.close(lease, "closed"), store.records.expire(session)))
        )
        assert sum(bool(end) for end in ends) == 0
        assert (await store.records.load(session)).record.reason == "disconnect_grace_expired"
        assert await used(store) == {("r1", "asr"): 1}
        await store.admission.release(session)
    assert await used(store) == {}


async def _over(store: Store, session: str) -> bool:
    return await store.records.expire(session) is not None


@pytest.mark.behaviour("L4")
async def test_concurrent_reapers_and_closers_have_one_winner(store: Store, valkey_url: str) -> None:
    await store.registry.beat(beat("r1"))
    await forget_silence(valkey_url)
    for n in range(20):
        lease = await store.records.create(f"s{n}", "g1", "h1", "t1", "p", {}, idle_ms=1)
        ends: list[str | bool | None] = []
        while not any(ends):
            calls = [call for _ in range(5) for call in (store.records.expire(f"s{n}"), store.records.close(lease, "closed"))]
            ends += await asyncio.gather(*calls)
        assert sum(bool(end) for end in ends) == 1


@pytest.mark.behaviour("L1")
async def test_deadlines_are_independent(store: Store, valkey_url: str) -> None:
    await store.registry.beat(beat("r1"))
    await forget_silence(valkey_url)
    idle = await store.records.create("idle", "g1", "h1", "t1", "p", {}, idle_ms=30)
    never = await store.records.create("never", "g1", "h1", "t1", "p", {}, idle_ms=0)
    assert await store.records.expire("idle") is None, "its holder has the grace to end it in good order"
    async with store_with(valkey_url, grace_ms=1) as brief:
        await until(lambda: _over(brief, "idle"))
    assert (await store.records.load("idle")).record.reason == "idle_ttl_expired"
    assert await store.records.expire("never") is None
    assert await store.records.detach(never, grace_ms=30)
    assert not await store.records.detach(never, grace_ms=30)
    await until(lambda: _over(store, "never"))
    assert (await store.records.load("never")).record.reason == "disconnect_grace_expired"
    assert not await store.records.close(idle, "late")


@pytest.mark.behaviour("L1")
async def test_grace_goes_before_idle_and_activity_puts_idle_off(store: Store, valkey_url: str) -> None:
    await store.registry.beat(beat("r1"))
    await forget_silence(valkey_url)
    lease = await store.records.create("s1", "g1", "h1", "t1", "p", {}, idle_ms=100_000)
    before = (await store.records.load("s1")).record.idle_deadline_ms

    async def put_off() -> bool:
        await store.records.commit(commit(lease, 1))
        return (await store.records.load("s1")).record.idle_deadline_ms > before

    await until(put_off)
    both = await store.records.create("s2", "g1", "h1", "t1", "p", {}, idle_ms=30)
    await store.records.detach(both, grace_ms=30)
    last = (await store.records.load("s2")).record.grace_deadline_ms
    async with Redis.from_url(valkey_url) as admin:

        async def both_passed() -> bool:
            seconds, micros = await admin.time()
            return seconds * 1000 + micros // 1000 >= last

        await until(both_passed)
    assert await _over(store, "s2")
    assert (await store.records.load("s2")).record.reason == "disconnect_grace_expired"


@pytest.mark.behaviour("X7")
async def test_a_session_whose_gateway_died_expires_and_its_slot_is_freed(store: Store, valkey_url: str) -> None:
    async with store_with(valkey_url, lease_ttl_ms=30, grace_ms=30, stale_slot_ms=60, orphan_after_ms=1) as brief:
        await brief.registry.beat(beat("r1"))
        await forget_silence(valkey_url)
        placed = (await brief.admission.reserve("s1", "t1", ("asr",))).placements
        await brief.admission.confirm("s1")
        await create(brief, "s1", placements=placed)
        held: tuple[str, ...] = ("s1",)

        async def told_to_free() -> bool:
            orphans = await brief.registry.beat(beat("r1", held=held))
            return [o.session_id for o in orphans] == ["s1"]

        await until(told_to_free)

        async def freed() -> bool:
            await brief.registry.beat(beat("r1"))
            return await used(brief) == {}

        await until(freed)
        assert await brief.records.expire("s1") == "lease_expired"
        assert await slot_members(valkey_url) == {}
        assert await keys_without_ttl(valkey_url) == []


async def test_nothing_expires_while_the_registry_is_mute(store: Store) -> None:
    await store.registry.beat(beat("r1"))
    lease = await create(store, "s1")
    await store.records.detach(lease, grace_ms=1)
    for _ in range(20):
        assert await store.records.expire("s1") is None


async def test_renew_answers_what_is_not_ours(store: Store) -> None:
    ours, gone, other = await create(store, "s1"), await create(store, "s2"), await create(store, "s3")
    await store.records.close(gone, "done")
    stale = Lease("s3", other.attachment - 1, "h0")
    missing = Lease("s4", 1, "h1")
    younger = Lease("s5", (await create(store, "s5")).attachment + 1, "h1")
    renewed = await store.records.renew("g1", [ours, gone, stale, missing, younger])
    assert renewed.lost.keys() == {"s2", "s3"}
    assert renewed.forgotten == {"s4", "s5"}
    assert (await store.records.renew("g1", [])).lost == {}


@pytest.mark.behaviour("L1", "L2")
async def test_renew_tells_the_holder_who_was_idle_and_puts_off_who_was_heard(store: Store) -> None:
    leases = [await store.records.create(name, "g1", "h1", "t1", "p", {}, idle_ms=20) for name in ("silent", "heard")]
    idle: set[str] = set()

    async def told() -> bool:
        idle.update((await store.records.renew("g1", leases, {"heard"})).idle)
        return bool(idle)

    await until(told)
    assert idle == {"silent"}
    assert await store.records.begin_close(leases[0], "idle_timeout"), "it is still its holder's to end"
    assert (await store.records.renew("g1", leases)).lost == {}


@pytest.mark.behaviour("L4")
async def test_renew_tells_why_a_session_was_closed_by_somebody_else(store: Store, valkey_url: str) -> None:
    await store.registry.beat(beat("r1"))
    await forget_silence(valkey_url)
    lease = await create(store, "s1")
    await pass_deadline(valkey_url, "s1", "lease")
    reaped = await store.records.reap("s1", "g2", "h2")
    assert reaped is not None
    for closed in (False, True):
        assert (await store.records.renew("g1", [lease])).lost == {"s1": "lease_expired"}, closed
        await store.records.close(reaped.lease, "")


async def test_a_stale_lease_may_do_nothing(store: Store) -> None:
    lease = await create(store, "s1")
    before = await store.records.load("s1")
    for stale in (Lease("s1", lease.attachment - 1, "h1"), Lease("s1", lease.attachment, "h2"), Lease("s1", lease.attachment + 1, "h1")):
        with pytest.raises(StaleGeneration):
            await store.records.commit(commit(stale, 1, b"x"))
        assert not await store.records.close(stale, "no")
        assert not await store.records.detach(stale)
    assert await store.records.load("s1") == before


@pytest.mark.behaviour("L8")
async def test_after_close_and_release_a_new_session_is_admitted_at_once(store: Store) -> None:
    await store.registry.beat(beat("r1", slots=1))
    for n in range(20):
        placed = (await store.admission.reserve(f"s{n}", "t1", ("asr",), 1)).placements
        await store.admission.confirm(f"s{n}")
        lease = await create(store, f"s{n}", placements=placed)
        assert await store.records.close(lease, "client_close")
        await store.admission.release(f"s{n}")


async def test_a_session_that_never_was_is_missing(store: Store) -> None:
    with pytest.raises(SessionMissing):
        await store.records.load("s1")
    with pytest.raises(SessionMissing):
        await store.records.commit(commit(Lease("s1", 1, "h1"), 1, b"x"))
    assert not await store.records.close(Lease("s1", 1, "h1"), "done")
    assert await store.records.expire("s1") is None


async def test_a_record_made_again_after_a_wipe_has_a_higher_generation(store: Store, valkey_url: str) -> None:
    lease = await create(store, "s1")
    async with Redis.from_url(valkey_url) as admin:
        await admin.flushall()
    assert (await store.records.renew("g1", [lease])).lost == {}
    again = await create(store, "s1")
    assert again.attachment > lease.attachment
    with pytest.raises(StaleGeneration):
        await store.records.commit(commit(lease, 1, b"x"))
