"""Two-step close, and who takes over from a cleaner or a gateway that died."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from session_store import Placement, SessionClosed, StaleGeneration, Store, StoreSettings, StoreUnavailable
from session_store.keys import POOL
from session_store.tokens import new_token
from tests.session_store.helpers import (
    beat,
    commit,
    create,
    forget_silence,
    keys_without_ttl,
    pass_deadline,
    resume,
    slot_members,
    store_with,
    until,
    used,
)
from tests.support.valkey import ValkeyProcess

TOKEN = new_token()


@pytest.fixture
async def awake(store: Store, valkey_url: str) -> Store:
    """A store whose registry is not mute."""
    await store.registry.beat(beat("r1"))
    await forget_silence(valkey_url)
    return store


@pytest.mark.behaviour("L4", "L5", "K34")
async def test_a_close_in_two_steps_keeps_everything_until_the_second(store: Store, valkey_url: str) -> None:
    placed = {"asr": Placement("r1", "host:r1", 7)}
    lease = await create(store, "s1", placements=placed, token=TOKEN)
    await store.records.commit(commit(lease, 1, b"said", items=b"i"))
    async with store_with(valkey_url) as other:
        began = await asyncio.gather(*((store, other)[n % 2].records.begin_close(lease, f"r{n}") for n in range(50)))
    assert began.count(True) == 1
    reason = f"r{began.index(True)}"
    stored = await store.records.load("s1")
    assert (stored.record.state, stored.record.reason, stored.record.placements) == ("closing", reason, placed)
    assert (stored.hot, stored.fields, [e.payload for e in stored.journal]) == (b"hot", {"items": b"i"}, [b"said"])
    for late in (store.records.commit(commit(lease, 2, b"x")), resume(store, "s1", TOKEN), create(store, "s1")):
        with pytest.raises(SessionClosed) as closed:
            await late
        assert closed.value.reason == reason
    assert not await store.records.detach(lease)
    assert not await store.records.settle_token(lease)
    assert (await store.records.renew("g1", [lease])).lost == {}
    renewed = (await store.records.load("s1")).record
    assert (renewed.closing_deadline_ms, renewed.lease_deadline_ms) == (stored.record.closing_deadline_ms, 0)
    ended = await asyncio.gather(*(store.records.close(lease, "other") for _ in range(10)))
    assert ended.count(True) == 1
    stored = await store.records.load("s1")
    assert (stored.record.state, stored.record.reason, stored.record.closing_deadline_ms) == ("closed", reason, 0)
    assert (stored.hot, stored.fields, stored.journal) == (b"", {}, [])
    assert await keys_without_ttl(valkey_url) == []


@pytest.mark.behaviour("L5", "L9")
async def test_a_cleaner_that_dies_is_replaced_by_one(awake: Store, valkey_url: str) -> None:
    placed = {"asr": Placement("r1", "host:r1", 7)}
    lease = await create(awake, "s1", placements=placed)
    assert await awake.records.begin_close(lease, "client_close")
    assert await awake.records.reapable() == []
    assert await awake.records.reap("s1", "g2", "h2") is None
    assert await awake.records.expire("s1") is None
    for generation in range(3):
        await pass_deadline(valkey_url, "s1", "closing")
        assert await awake.records.reapable() == ["s1"]
        outcomes = await asyncio.gather(*(awake.records.reap("s1", "g2", f"h{generation}_{n}") for n in range(10)))
        (reaped,) = [one for one in outcomes if one]
        assert (reaped.placements, reaped.reason) == (placed, "client_close")
        assert reaped.lease.attachment > lease.attachment
        assert not await awake.records.close(lease, "late")
        assert await awake.records.reapable() == []
        lease = reaped.lease
    assert await awake.records.close(lease, "reaped")
    assert (await awake.records.load("s1")).record.reason == "client_close"
    assert await awake.records.reap("s1", "g2", "h2") is None


@pytest.mark.behaviour("L1", "L9", "X7")
async def test_deadlines_make_candidates_and_the_record_judges(store: Store, valkey_url: str) -> None:
    async with store_with(valkey_url, lease_ttl_ms=60, grace_ms=60) as brief:
        await brief.registry.beat(beat("r1"))
        await forget_silence(valkey_url)
        dead = await create(brief, "dead", token=TOKEN)
        await brief.records.create("idle", "g1", "h1", "t1", "p", {}, idle_ms=20)
        gone = await create(brief, "gone")
        await brief.records.detach(gone, grace_ms=20)
        alive = await create(brief, "alive")
        reasons: dict[str, str] = {}

        async def all_reaped() -> bool:
            await brief.records.renew("g1", [alive])
            for session in await brief.records.reapable():
                if reaped := await brief.records.reap(session, "g2", "h2"):
                    assert session not in reasons
                    reasons[session] = reaped.reason
                    assert await brief.records.close(reaped.lease, "")
            return len(reasons) == 3

        await until(all_reaped)
        assert reasons == {"gone": "disconnect_grace_expired", "dead": "lease_expired", "idle": reasons["idle"]}
        assert reasons["idle"] in ("idle_ttl_expired", "lease_expired")
        with pytest.raises(SessionClosed):
            await brief.records.commit(commit(dead, 1, b"x"))
        assert await brief.records.close(alive, "done")
        assert await slot_members(valkey_url) == {}


async def test_a_candidate_that_lives_is_put_off_and_one_without_a_record_forgotten(awake: Store, valkey_url: str) -> None:
    lease = await create(awake, "s1")
    async with Redis.from_url(valkey_url) as admin:
        await admin.zadd(f"{POOL}:deadlines", {"s1": 1, "never": 1})
        assert await awake.records.reapable() == ["never", "s1"]
        assert await awake.records.reapable(1) == ["never"]
        for session in ("s1", "never"):
            assert await awake.records.reap(session, "g2", "h2") is None
        due = await admin.zscore(f"{POOL}:deadlines", "s1")
        assert due == (await awake.records.load("s1")).record.lease_deadline_ms + 30_000
        assert await admin.zscore(f"{POOL}:deadlines", "never") is None
    assert (await awake.records.renew("g1", [lease])).lost == {}


@pytest.mark.behaviour("X7")
async def test_reaped_slots_are_held_until_they_are_released(awake: Store, valkey_url: str) -> None:
    await awake.registry.beat(beat("r1", slots=1))
    placed = (await awake.admission.reserve("s1", "t1", ("asr",))).placements
    lease = await create(awake, "s1", placements=placed)
    await awake.admission.confirm("s1")
    await pass_deadline(valkey_url, "s1", "lease")
    reaped = await awake.records.reap("s1", "g2", "h2")
    assert reaped is not None
    assert (reaped.placements, reaped.reason) == (placed, "lease_expired")
    with pytest.raises(StaleGeneration):
        await awake.records.commit(commit(lease, 1, b"x"))
    # The cleaner is the reaper, so the replica is not told to free it.
    assert await awake.registry.beat(beat("r1", slots=1, held=("s1",))) == ()
    assert await used(awake) == {("r1", "asr"): 1}
    await awake.admission.release("s1")
    assert await awake.records.close(reaped.lease, "reaped")
    await awake.registry.beat(beat("r1", slots=1))
    assert await slot_members(valkey_url) == {}


@pytest.mark.behaviour("X4")
async def test_nobody_is_reaped_while_the_registry_is_mute(store: Store, valkey_url: str) -> None:
    await store.registry.beat(beat("r1"))
    await create(store, "s1")
    await pass_deadline(valkey_url, "s1", "lease")
    assert await store.records.reapable() == []
    assert await store.records.reap("s1", "g2", "h2") is None
    await forget_silence(valkey_url)
    assert await store.records.reapable() == ["s1"]


@pytest.mark.behaviour("X4")
async def test_who_could_not_reach_redis_reaps_nobody_for_a_while() -> None:
    """Other gateways may have been cut off, too, and could not renew."""
    with ValkeyProcess() as server:
        away = await Store.open(server.url, StoreSettings(redis_timeout_ms=100, mute_ms=300))
        async with store_with(server.url) as near:
            await near.registry.beat(beat("r1"))
            await forget_silence(server.url)
            await create(near, "s1")
            await pass_deadline(server.url, "s1", "lease")
            assert await away.records.reapable() == ["s1"]
            server.pause()
            with pytest.raises(StoreUnavailable):
                await away.records.renew("g1", [])
            server.resume()
            await until(lambda: _reaches(away))
            assert await away.records.reapable() == []
            assert await near.records.reapable() == ["s1"]

            async def heard_again() -> bool:
                return await away.records.reapable() == ["s1"]

            await until(heard_again)
        await away.close()


async def _reaches(store: Store) -> bool:
    try:
        return await store.registry.mute_ms() > 0
    except StoreUnavailable:
        return False


@pytest.mark.behaviour("X7")
async def test_a_pool_that_forgot_its_deadlines_hears_of_them_from_the_replicas(store: Store, valkey_url: str) -> None:
    await store.registry.beat(beat("r1"))
    placed = (await store.admission.reserve("s1", "t1", ("asr",))).placements
    await create(store, "s1", placements=placed)
    await pass_deadline(valkey_url, "s1", "lease")
    async with Redis.from_url(valkey_url) as admin:
        await admin.delete(*[key async for key in admin.scan_iter(f"{POOL}*")])
    await store.registry.beat(beat("r1", held=("s1",)))
    await forget_silence(valkey_url)
    assert await store.records.reapable() == ["s1"]
    reaped = await store.records.reap("s1", "g2", "h2")
    assert reaped is not None
    assert reaped.placements == placed


async def test_limits_of_a_resume_and_a_reaper_race(awake: Store, valkey_url: str) -> None:
    """Attached with a dead gateway: resumable until lease and grace are over, then reaped, never both."""
    for n in range(20):
        session = f"s{n}"
        await create(awake, session, token=TOKEN)
        resumed = asyncio.ensure_future(asyncio.wait_for(resume(awake, session, TOKEN), 5))
        reaping = asyncio.ensure_future(_reap_when_due(awake, valkey_url, session))
        outcomes = await asyncio.gather(resumed, reaping, return_exceptions=True)
        state = (await awake.records.load(session)).record.state
        assert (state == "closing") == (outcomes[1] is not None)
        if not isinstance(outcomes[0], BaseException) and outcomes[1]:
            assert outcomes[1].lease.attachment > outcomes[0][0].lease.attachment  # type: ignore[union-attr]


async def _reap_when_due(store: Store, url: str, session: str) -> object:
    await pass_deadline(url, session, "lease")
    return await store.records.reap(session, "g3", "h3")
