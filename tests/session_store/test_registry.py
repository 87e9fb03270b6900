"""Replicas and gateways: beats, time to live, reconciliation."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from redis.asyncio import Redis

from session_store import Orphan, Placement, Store
from session_store.keys import POOL
from tests.session_store.helpers import beat, commit, create, forget_silence, keys_without_ttl, store_with, until, used


async def test_a_beat_shows_the_replica_and_its_stages(store: Store) -> None:
    await store.registry.beat(beat("r1", "asr", "llm", slots=3, kv=(100, 40)))
    (replica,) = await store.registry.replicas()
    assert (replica.replica_id, replica.service, replica.address, replica.draining) == ("r1", "thinker", "host:r1", False)
    assert [(s.stage, s.slots, s.kv_bytes, s.kv_per_session, s.model, s.used) for s in replica.stages] == [
        ("asr", 3, 100, 40, "stub", 0),
        ("llm", 3, 100, 40, "stub", 0),
    ]
    assert 0 < replica.ttl_ms <= store.settings.replica_ttl_ms


async def test_the_next_beat_replaces_all_that_the_last_one_said(store: Store) -> None:
    await store.registry.beat(beat("r1", "asr", "llm"))
    await store.registry.beat(beat("r1", "llm", draining=True))
    (replica,) = await store.registry.replicas()
    assert replica.draining
    assert [s.stage for s in replica.stages] == ["llm"]


@pytest.mark.behaviour("X7")
async def test_a_replica_without_a_beat_is_gone_and_its_slots_with_it(store: Store, valkey_url: str) -> None:
    async with store_with(valkey_url, replica_ttl_ms=60) as brief:
        await brief.registry.beat(beat("r1"))
        await store.registry.beat(beat("r2", "llm"))
        await brief.admission.reserve("s1", "t1", ("asr",))
        await until(lambda: _gone(store, "r1"))
        assert await used(store) == {}
        assert [r.replica_id for r in await store.registry.replicas()] == ["r2"]


async def _gone(store: Store, replica: str) -> bool:
    return replica not in [r.replica_id for r in await store.registry.replicas()]


async def test_remove_is_idempotent(store: Store) -> None:
    await store.registry.beat(beat("r1"))
    await store.registry.remove("r1")
    await store.registry.remove("r1")
    assert await store.registry.replicas() == []


async def test_gateways_live_by_their_beats(store: Store, valkey_url: str) -> None:
    async with store_with(valkey_url, gateway_ttl_ms=60) as brief:
        await brief.registry.beat_gateway("g1", "ws://one")
        await store.registry.beat_gateway("g2", "ws://two")

        async def only_g2() -> bool:
            return [g.gateway_id for g in await store.registry.gateways()] == ["g2"]

        await until(only_g2)
        await store.records.renew("g2", [])
        await store.registry.remove_gateway("g2")
        assert await store.registry.gateways() == []


async def test_a_held_session_counts_though_nobody_planned_it(store: Store) -> None:
    await store.registry.beat(beat("r1", held=("s1",)))
    assert await used(store) == {("r1", "asr"): 1}
    await store.registry.beat(beat("r1"))
    assert await used(store) == {}


async def test_a_held_session_without_a_record_comes_back_as_an_orphan(store: Store, valkey_url: str) -> None:
    async with store_with(valkey_url, orphan_after_ms=30) as brief:
        assert await brief.registry.beat(beat("r1", held=("s1",))) == ()
        await forget_silence(valkey_url)

        async def orphaned() -> bool:
            return await brief.registry.beat(beat("r1", held=("s1",))) == (Orphan("s1", "asr"),)

        await until(orphaned)


async def test_a_session_whose_record_is_closed_is_an_orphan_even_if_its_slot_was_released(store: Store, valkey_url: str) -> None:
    async with store_with(valkey_url, orphan_after_ms=1) as brief:
        await brief.registry.beat(beat("r1"))
        await forget_silence(valkey_url)
        placed = (await brief.admission.reserve("s1", "t1", ("asr",))).placements
        lease = await create(brief, "s1", placements=placed)
        await brief.records.close(lease, "done")
        await brief.admission.release("s1")

        async def orphaned() -> bool:
            return await brief.registry.beat(beat("r1", held=("s1",))) == (Orphan("s1", "asr"),)

        await until(orphaned)


async def test_a_live_session_gets_back_the_slot_that_the_pool_had_lost(store: Store) -> None:
    await store.registry.beat(beat("r1"))
    placed = (await store.admission.reserve("s1", "t1", ("asr",))).placements
    await create(store, "s1", placements=placed)
    await store.registry.remove("r1")
    assert await store.registry.beat(beat("r1", held=("s1",))) == ()
    assert (await store.admission.reserve("s1", "t1", ("asr",))).placements == placed


async def test_a_session_placed_elsewhere_is_an_orphan_here(store: Store, valkey_url: str) -> None:
    async with store_with(valkey_url, orphan_after_ms=1) as brief:
        await create(brief, "s1", placements={"asr": Placement("r2", "host:r2", 1)})
        await brief.registry.beat(beat("r1", held=("s1",)))
        await forget_silence(valkey_url)

        async def orphaned() -> bool:
            return await brief.registry.beat(beat("r1", held=("s1",))) == (Orphan("s1", "asr"),)

        await until(orphaned)


@pytest.mark.behaviour("X5", "L5")
async def test_a_session_stays_where_its_record_says_until_it_has_moved(store: Store, valkey_url: str) -> None:
    """Its next place is reserved while it is still in use at the old one, which nobody frees before the record says that it moved."""
    both = (beat("r1", "asr", "llm", held=("s1",), draining=True), beat("r2", "asr", "llm"))
    await store.registry.beat(beat("r1", "asr", "llm"))
    placed = (await store.admission.reserve("s1", "t1", ("asr", "llm"))).placements
    lease = await create(store, "s1", placements=placed)
    await store.registry.beat(both[1])
    await forget_silence(valkey_url)
    moved = (await store.admission.reserve("s1", "t1", ("asr",), avoid=("r1",))).placements
    await store.admission.confirm("s1")
    assert moved["asr"].replica_id == "r2" and await store.registry.beat(both[0]) == ()
    assert await used(store) == {("r1", "asr"): 1, ("r1", "llm"): 1, ("r2", "asr"): 1}, "the other stage keeps its place"
    await store.admission.release("s1", ("asr",))
    assert await store.registry.beat(both[0]) == ()
    assert await store.admission.quarantined() == [], "given back: the old place is the plan's again"
    moved = (await store.admission.reserve("s1", "t1", ("asr",), avoid=("r1",))).placements
    await store.records.commit(msgspec.structs.replace(commit(lease, 1), placements={**placed, **moved}))
    assert await store.registry.beat(both[0]) == (Orphan("s1", "asr"),)


async def test_nothing_is_an_orphan_while_the_registry_is_mute(store: Store, valkey_url: str) -> None:
    async with store_with(valkey_url, orphan_after_ms=1) as brief:
        for _ in range(20):
            assert await brief.registry.beat(beat("r1", held=("s1",))) == ()
        assert 0 < await brief.registry.mute_ms() <= 15_000
        await forget_silence(valkey_url)
        assert await brief.registry.mute_ms() == 0


async def test_a_silence_of_everybody_mutes_the_registry_again(store: Store, valkey_url: str) -> None:
    async with store_with(valkey_url, silence_ms=40) as brief:
        await brief.registry.beat(beat("r1"))
        await forget_silence(valkey_url)

        async def silent() -> bool:
            return await brief.registry.mute_ms() > 0

        await until(silent)


@pytest.mark.behaviour("X7")
async def test_slots_that_neither_a_gateway_nor_the_replica_knows_are_freed(store: Store, valkey_url: str) -> None:
    async with store_with(valkey_url, stale_slot_ms=60) as brief:
        await brief.registry.beat(beat("r1"))
        await forget_silence(valkey_url)
        await brief.admission.reserve("s1", "t1", ("asr",))
        await brief.admission.confirm("s1")

        async def freed() -> bool:
            await brief.registry.beat(beat("r1"))
            return await used(brief) == {}

        await until(freed)
        assert await keys_without_ttl(valkey_url) == []


async def test_a_renewed_session_keeps_its_slot_though_the_replica_does_not_list_it(store: Store, valkey_url: str) -> None:
    async with store_with(valkey_url, stale_slot_ms=5_000) as brief:
        await brief.registry.beat(beat("r1"))
        await forget_silence(valkey_url)
        placed = (await brief.admission.reserve("s1", "t1", ("asr",))).placements
        await brief.admission.confirm("s1")
        lease = await create(brief, "s1", placements=placed)
        for _ in range(5):
            assert (await brief.records.renew("g1", [lease])).lost == {}
            await brief.registry.beat(beat("r1"))
        assert await used(brief) == {("r1", "asr"): 1}


MANY = [f"sess_{n:032x}" for n in range(7, 7_000, 35)]
"""More slots than a beat judges at once."""
BEATS = 8
"""Within which every slot had its turn."""


async def test_all_that_a_large_replica_holds_counts_at_once(store: Store) -> None:
    await store.registry.beat(beat("r1", "asr", "llm", held=MANY[:150]))
    await store.registry.beat(beat("r1", "asr", "llm", held=MANY))
    assert await used(store) == {("r1", "asr"): 200, ("r1", "llm"): 200}


async def test_each_beat_of_a_large_replica_frees_a_share_and_eight_free_all_whoever_comes_meanwhile(store: Store, valkey_url: str) -> None:
    await store.registry.beat(beat("r1", held=MANY))
    left = [len(MANY)]
    async with Redis.from_url(valkey_url, decode_responses=True) as admin:
        for n in range(BEATS):
            await store.registry.beat(beat("r1", held=[f"late_{n}_{number}" for number in range(100)]))
            left.append(len(set(await admin.zrange(f"{POOL}:slots:r1:asr", 0, -1)) & set(MANY)))
    assert left == sorted(left, reverse=True) and left[-1] == 0
    assert max(before - after for before, after in pairwise(left)) < 64


async def test_each_orphan_of_a_large_replica_is_found_once_within_eight_beats(store: Store, valkey_url: str) -> None:
    async with store_with(valkey_url, orphan_after_ms=1) as brief:
        await brief.registry.beat(beat("r1", held=MANY))
        await forget_silence(valkey_url)
        for _ in range(2):
            found = [await brief.registry.beat(beat("r1", held=MANY)) for _ in range(BEATS)]
            assert max(map(len, found)) < 64
            assert sorted(orphan for share in found for orphan in share) == [Orphan(session, "asr") for session in MANY]


async def test_a_slot_of_a_large_replica_is_marked_absent_and_present_again_within_eight_beats(store: Store, valkey_url: str) -> None:
    await store.registry.beat(beat("r1", slots=500, held=MANY))
    await store.admission.reserve("s1", "t1", ("asr",))
    await store.admission.confirm("s1")

    async def marked() -> bool:
        async with Redis.from_url(valkey_url) as admin:
            return bool(await admin.hexists(f"{POOL}:session:s1", "absent:asr"))

    for held in (MANY, [*MANY, "s1"]):
        for _ in range(BEATS):
            await store.registry.beat(beat("r1", slots=500, held=held))
        assert await marked() == ("s1" not in held)
    assert (await used(store))["r1", "asr"] == 201


async def test_names_that_no_key_can_carry_are_refused(store: Store) -> None:
    with pytest.raises(ValueError):
        await store.registry.beat(beat("r 1"))
    with pytest.raises(ValueError):
        await store.registry.beat(beat("r1", "Asr"))
    with pytest.raises(ValueError):
        await store.registry.beat(beat("r1", held=("a}b",)))
