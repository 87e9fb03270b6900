"""Reserve, confirm, release, quarantine: one script each."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from session_store import AtCapacity, ReservationLost, StagesUnavailable, Store, TenantLimit
from tests.session_store.helpers import beat, commit, create, forget_silence, keys_without_ttl, slot_members, store_with, until, used


async def test_all_stages_at_once_or_nothing(store: Store) -> None:
    await store.registry.beat(beat("r1", "asr", slots=4))
    await store.registry.beat(beat("r2", "llm", slots=1))
    await store.admission.reserve("s1", "t1", ("asr", "llm"))
    with pytest.raises(AtCapacity) as refused:
        await store.admission.reserve("s2", "t1", ("asr", "llm"))
    assert (refused.value.stage, refused.value.retry_after_ms) == ("llm", 2_000)
    with pytest.raises(StagesUnavailable) as missing:
        await store.admission.reserve("s3", "t1", ("asr", "talker"))
    assert missing.value.stage == "talker"
    assert await used(store) == {("r1", "asr"): 1, ("r2", "llm"): 1}


async def test_the_least_loaded_replica_is_chosen_and_the_seed_breaks_ties(store: Store) -> None:
    for replica, slots in (("r1", 2), ("r2", 4)):
        await store.registry.beat(beat(replica, slots=slots))
    chosen = {(await store.admission.reserve("s1", "t1", ("asr",), seed=seed)).placements["asr"].replica_id for seed in range(1)}
    assert len(chosen) == 1
    other = "r2" if chosen == {"r1"} else "r1"
    assert (await store.admission.reserve("s2", "t1", ("asr",))).placements["asr"].replica_id == other
    # 1 of 2 against 1 of 4.
    assert (await store.admission.reserve("s3", "t1", ("asr",))).placements["asr"].replica_id == "r2"
    await store.admission.release("s1")
    await store.admission.release("s2")
    await store.admission.release("s3")
    by_seed = set()
    for seed in range(4):
        by_seed.add((await store.admission.reserve("s4", "t1", ("asr",), seed=seed)).placements["asr"].replica_id)
        await store.admission.release("s4")
    assert by_seed == {"r1", "r2"}


@pytest.mark.behaviour("X7")
async def test_the_kv_budget_bounds_sessions_below_the_slots(store: Store) -> None:
    await store.registry.beat(beat("r1", "llm", slots=8, kv=(100, 40)))
    await store.admission.reserve("s1", "t1", ("llm",))
    await store.admission.reserve("s2", "t1", ("llm",))
    with pytest.raises(AtCapacity):
        await store.admission.reserve("s3", "t1", ("llm",))


@pytest.mark.behaviour("X7")
async def test_a_tenant_has_at_most_its_sessions(store: Store) -> None:
    await store.registry.beat(beat("r1", slots=8))
    await store.admission.reserve("s1", "t1", ("asr",), 2)
    await store.admission.reserve("s2", "t1", ("asr",), 2)
    with pytest.raises(TenantLimit) as refused:
        await store.admission.reserve("s3", "t1", ("asr",), 2)
    assert refused.value.retry_after_ms == 5_000
    await store.admission.reserve("s2", "t1", ("asr",), 2)
    await store.admission.reserve("s4", "t2", ("asr",), 2)
    await store.admission.release("s1")
    await store.admission.reserve("s3", "t1", ("asr",), 2)


async def test_draining_and_avoided_replicas_take_nobody(store: Store) -> None:
    await store.registry.beat(beat("r1", draining=True))
    with pytest.raises(StagesUnavailable):
        await store.admission.reserve("s1", "t1", ("asr",))
    await store.registry.beat(beat("r2"))
    with pytest.raises(StagesUnavailable):
        await store.admission.reserve("s1", "t1", ("asr",), avoid=("r2",))


@pytest.mark.behaviour("L6")
async def test_a_repeat_answers_the_same_and_frees_nothing(store: Store) -> None:
    await store.registry.beat(beat("r1", slots=1))
    first = await store.admission.reserve("s1", "t1", ("asr",))
    assert await store.admission.reserve("s1", "t1", ("asr",)) == first
    await store.admission.confirm("s1")
    await store.admission.confirm("s1")
    with pytest.raises(AtCapacity):
        await store.admission.reserve("s2", "t1", ("asr",))
    assert await store.admission.reserve("s1", "t1", ("asr",)) == first
    assert await used(store) == {("r1", "asr"): 1}


async def test_a_stage_is_placed_anew_with_a_higher_number(store: Store) -> None:
    await store.registry.beat(beat("r1", "asr"))
    first = (await store.admission.reserve("s1", "t1", ("asr",))).placements["asr"]
    await store.registry.beat(beat("r2", "asr"))
    again = (await store.admission.reserve("s1", "t1", ("asr",), avoid=(first.replica_id,))).placements["asr"]
    assert (again.replica_id, again.placement > first.placement) == ("r2", True)
    assert [(q.session_id, q.stage, q.replica_id) for q in await store.admission.quarantined()] == [("s1", "asr", "r1")]
    assert await used(store) == {("r1", "asr"): 1, ("r2", "asr"): 1}


async def test_one_lost_stage_is_placed_anew_the_others_stay_and_the_record_knows(store: Store) -> None:
    await store.registry.beat(beat("r1", "asr", slots=1))
    await store.registry.beat(beat("r2", "llm", "talker", slots=1))
    await store.registry.beat(beat("r3", "asr", slots=1))
    before = (await store.admission.reserve("s1", "t1", ("asr", "llm", "talker"))).placements
    await store.admission.confirm("s1")
    lease = await create(store, "s1", placements=before)
    lost = before["asr"].replica_id
    with pytest.raises(AtCapacity):
        await store.admission.reserve("s2", "t1", ("llm",))
    moved = (await store.admission.reserve("s1", "t1", ("asr",), avoid=(lost,))).placements
    await store.admission.confirm("s1")
    assert {moved["asr"].replica_id, lost} == {"r1", "r3"}
    assert moved["asr"].placement > max(one.placement for one in before.values())
    assert (await store.admission.reserve("s1", "t1", ("llm", "talker"))).placements == {s: before[s] for s in ("llm", "talker")}
    now = before | moved
    await store.records.commit(msgspec.structs.replace(commit(lease, 1, b"x"), placements=now))
    assert (await store.records.load("s1")).record.placements == now
    # The old slot stays taken until its replica says that it is free, or is gone; what the session releases is what it has now.
    assert [(q.stage, q.replica_id) for q in await store.admission.quarantined()] == [("asr", lost)]
    await store.admission.release("s1")
    assert await used(store) == {(lost, "asr"): 1}
    await store.registry.beat(beat(lost, "asr", slots=1))
    assert await used(store) == {}


async def test_a_stage_whose_replica_died_is_placed_anew_without_an_avoid(store: Store) -> None:
    await store.registry.beat(beat("r1", "asr"))
    before = (await store.admission.reserve("s1", "t1", ("asr",))).placements["asr"]
    await store.admission.confirm("s1")
    await store.registry.remove("r1")
    await store.registry.beat(beat("r2", "asr"))
    after = (await store.admission.reserve("s1", "t1", ("asr",))).placements["asr"]
    assert (after.replica_id, after.placement > before.placement) == ("r2", True)


async def test_placements_rise_over_sessions_and_stages(store: Store) -> None:
    await store.registry.beat(beat("r1", "asr", "llm", slots=16))
    reserved = [await store.admission.reserve(f"s{n}", "t1", ("asr", "llm")) for n in range(8)]
    numbers = [placement.placement for one in reserved for placement in one.placements.values()]
    assert numbers == sorted(set(numbers))


@pytest.mark.behaviour("L7", "X7")
async def test_an_unconfirmed_reservation_expires(store: Store, valkey_url: str) -> None:
    async with store_with(valkey_url, reservation_ttl_ms=50) as brief:
        await store.registry.beat(beat("r1", slots=1))
        await brief.admission.reserve("s1", "t1", ("asr",), 1)

        async def admitted() -> bool:
            try:
                await store.admission.reserve("s2", "t1", ("asr",), 1)
            except (AtCapacity, TenantLimit):
                return False
            return True

        await until(admitted)
        with pytest.raises(ReservationLost):
            await store.admission.confirm("s1")
        await store.admission.confirm("s2")


async def test_a_confirmed_reservation_does_not_expire(store: Store, valkey_url: str) -> None:
    async with store_with(valkey_url, reservation_ttl_ms=50) as brief:
        await store.registry.beat(beat("r1", "asr", "llm", slots=2))
        await brief.admission.reserve("s1", "t1", ("asr",))
        await brief.admission.confirm("s1")
        await brief.admission.reserve("s2", "t1", ("llm",))

        async def other_expired() -> bool:
            await brief.admission.release("nobody")
            return await used(brief) == {("r1", "asr"): 1}

        await until(other_expired)


async def test_confirm_names_the_stage_whose_replica_went(store: Store) -> None:
    await store.registry.beat(beat("r1", "asr"))
    await store.registry.beat(beat("r2", "llm"))
    await store.admission.reserve("s1", "t1", ("asr", "llm"))
    await store.registry.remove("r2")
    with pytest.raises(ReservationLost) as lost:
        await store.admission.confirm("s1")
    assert lost.value.stage == "llm"
    await store.registry.beat(beat("r3", "llm"))
    await store.admission.reserve("s1", "t1", ("llm",))
    await store.admission.confirm("s1")


async def test_release_by_stage_and_whole_is_idempotent(store: Store, valkey_url: str) -> None:
    await store.registry.beat(beat("r1", "asr", "llm"))
    await store.admission.reserve("s1", "t1", ("asr", "llm"), 1)
    await store.admission.release("s1", ())
    await store.admission.release("s1", ("asr",))
    await store.admission.release("s1", ("asr",))
    assert await used(store) == {("r1", "llm"): 1}
    await store.admission.release("s1")
    await store.admission.release("s1")
    assert await used(store) == {}
    assert await slot_members(valkey_url) == {}


@pytest.mark.behaviour("L5")
async def test_a_quarantined_slot_is_kept_and_shown_until_the_replica_lists_it_no_more(store: Store, valkey_url: str) -> None:
    await store.registry.beat(beat("r1", "asr", "llm", slots=1))
    await forget_silence(valkey_url)
    await store.admission.reserve("s1", "t1", ("asr", "llm"))
    await store.admission.confirm("s1")
    assert await store.admission.quarantine("s1", "asr")
    assert not await store.admission.quarantine("s1", "asr")
    await store.admission.release("s1")
    assert [(q.session_id, q.stage, q.replica_id) for q in await store.admission.quarantined()] == [("s1", "asr", "r1")]
    orphans = await store.registry.beat(beat("r1", "asr", "llm", slots=1, held=("s1",)))
    assert [(o.session_id, o.stage) for o in orphans if o.stage == "asr"] == [("s1", "asr")]
    with pytest.raises(AtCapacity):
        await store.admission.reserve("s2", "t1", ("asr",))
    await store.registry.beat(beat("r1", "asr", "llm", slots=1))
    assert await store.admission.quarantined() == []
    await store.admission.reserve("s2", "t1", ("asr", "llm"))


async def test_a_quarantine_goes_with_its_replica(store: Store) -> None:
    await store.registry.beat(beat("r1"))
    await store.admission.reserve("s1", "t1", ("asr",))
    await store.admission.quarantine("s1", "asr")
    await store.registry.remove("r1")
    assert await store.admission.quarantined() == []


@pytest.mark.behaviour("L6", "X7")
async def test_concurrent_opens_over_many_gateways_never_exceed_the_slots(store: Store, valkey_url: str) -> None:
    for n in range(3):
        await store.registry.beat(beat(f"r{n}", "asr", "llm", slots=3))
    async with store_with(valkey_url) as other:
        gateways = (store, other)

        async def open_one(n: int) -> str | None:
            try:
                await gateways[n % 2].admission.reserve(f"s{n}", "t1", ("asr", "llm"))
            except AtCapacity:
                return None
            await gateways[n % 2].admission.confirm(f"s{n}")
            return f"s{n}"

        admitted = [session for session in await asyncio.gather(*(open_one(n) for n in range(60))) if session]
        assert len(admitted) == 9
        assert await used(store) == {(f"r{n}", stage): 3 for n in range(3) for stage in ("asr", "llm")}
        await asyncio.gather(*(gateways[i % 2].admission.release(session) for i, session in enumerate(admitted * 2)))
    assert await used(store) == {}
    assert await slot_members(valkey_url) == {}
    assert await keys_without_ttl(valkey_url) == []


async def test_concurrent_duplicates_of_one_open_take_one_slot(store: Store) -> None:
    await store.registry.beat(beat("r1", slots=4))
    reserved = await asyncio.gather(*(store.admission.reserve("s1", "t1", ("asr",)) for _ in range(20)))
    assert len({one.placements["asr"] for one in reserved}) == 1
    assert await used(store) == {("r1", "asr"): 1}


async def test_a_session_has_stages(store: Store) -> None:
    with pytest.raises(ValueError):
        await store.admission.reserve("s1", "t1", ())
