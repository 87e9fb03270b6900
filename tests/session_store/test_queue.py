"""Waiting for a slot: first come, first served, bounded, and gone when the caller is."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest
from redis.asyncio import Redis

from session_store import AtCapacity, Reserved, StagesUnavailable, Store, StoreError, TenantLimit
from session_store.keys import POOL
from tests.session_store.helpers import beat, keys_without_ttl, slot_members, store_with, until, used

LONG_MS = 20_000


async def _waiting(url: str) -> list[str]:
    async with Redis.from_url(url, decode_responses=True) as admin:
        return await admin.zrange(f"{POOL}:waiting", 0, -1)


async def _leftovers(url: str) -> list[bytes]:
    async with Redis.from_url(url) as admin:
        return [key for part in ("waiting", "queue:*", "waiter:*") for key in await admin.keys(f"{POOL}:{part}")]


def _wait(store: Store, session: str, tenant: str = "t1", limit: int = 0, stages: Sequence[str] = ("asr",)) -> asyncio.Task[Reserved]:
    return asyncio.create_task(store.admission.reserve(session, tenant, stages, limit, wait_ms=LONG_MS), name=session)


async def _queued(
    store: Store, url: str, session: str, tenant: str = "t1", limit: int = 0, stages: Sequence[str] = ("asr",)
) -> asyncio.Task[Reserved]:
    """A waiter that is in the queue already, so that the order of calls is the order of arrival."""
    task = _wait(store, session, tenant, limit, stages)

    async def queued() -> bool:
        return session in await _waiting(url)

    await until(queued)
    return task


@pytest.mark.behaviour("X7")
async def test_slots_go_to_those_who_came_first(store: Store, valkey_url: str) -> None:
    await store.registry.beat(beat("r1", slots=2))
    for session in ("a", "b"):
        await store.admission.reserve(session, "t1", ("asr",))
    async with store_with(valkey_url) as other:
        tasks = [await _queued((store, other)[n % 2], valkey_url, f"w{n}") for n in range(8)]
        order: list[str] = []
        holders = ["a", "b"]
        while len(order) < 8:
            await store.admission.release(holders.pop(0))
            done, _ = await asyncio.wait([t for t in tasks if t.get_name() not in order], return_when=asyncio.FIRST_COMPLETED)
            assert len(done) == 1
            assert await used(store) == {("r1", "asr"): 2}
            order.append(done.pop().get_name())
            holders.append(order[-1])
    assert order == [f"w{n}" for n in range(8)]
    assert await _leftovers(valkey_url) == []


@pytest.mark.behaviour("X7")
async def test_who_does_not_wait_goes_after_those_who_do(store: Store, valkey_url: str) -> None:
    # The waiter sleeps through what follows, with its turn kept.
    async with store_with(valkey_url, queue_poll_ms=2_000, waiter_ttl_ms=8_000) as slow:
        await slow.registry.beat(beat("r1", slots=1))
        await slow.admission.reserve("a", "t1", ("asr",))
        task = await _queued(slow, valkey_url, "w")
        await slow.admission.release("a")
        with pytest.raises(AtCapacity) as refused:
            await slow.admission.reserve("b", "t1", ("asr",))
        assert (refused.value.stage, refused.value.position) == ("asr", 2)
        assert (await task).placements["asr"].replica_id == "r1"


async def test_the_place_in_the_queue_is_told_and_a_late_waiter_is_refused(store: Store, valkey_url: str) -> None:
    await store.registry.beat(beat("r1", slots=1))
    await store.admission.reserve("a", "t1", ("asr",))
    first = await _queued(store, valkey_url, "w0")
    heard: list[int] = []
    with pytest.raises(AtCapacity) as refused:
        await store.admission.reserve("w1", "t1", ("asr",), wait_ms=150, on_position=heard.append)
    assert set(heard) == {2}
    assert (refused.value.stage, refused.value.position) == ("asr", 2)
    assert await _waiting(valkey_url) == ["w0"]
    with pytest.raises(AtCapacity) as at_once:
        await store.admission.reserve("w2", "t1", ("asr",))
    assert at_once.value.position == 2
    first.cancel()
    await asyncio.wait([first])
    assert await _leftovers(valkey_url) == []


@pytest.mark.behaviour("X7")
async def test_a_tenant_that_has_enough_blocks_nobody_and_keeps_its_own_order(store: Store, valkey_url: str) -> None:
    await store.registry.beat(beat("r1", slots=2))
    for session, tenant in (("a", "t1"), ("b", "t2")):
        await store.admission.reserve(session, tenant, ("asr",), 1)
    capped = [await _queued(store, valkey_url, f"c{n}", "t1", 1) for n in range(3)]
    free = await _queued(store, valkey_url, "f", "t3", 1)
    await store.admission.release("b")
    await free
    with pytest.raises(TenantLimit):
        await store.admission.reserve("c9", "t1", ("asr",), 1, wait_ms=50)
    holder = "a"
    for n, task in enumerate(capped):
        await store.admission.release(holder)
        await task
        assert await used(store) == {("r1", "asr"): 2}
        holder = f"c{n}"
    assert await _leftovers(valkey_url) == []


async def test_those_who_want_other_stages_are_not_held_up(store: Store, valkey_url: str) -> None:
    await store.registry.beat(beat("r1", "asr", slots=2))
    await store.registry.beat(beat("r2", "llm", slots=1))
    await store.admission.reserve("a", "t1", ("asr", "llm"))
    waiter = await _queued(store, valkey_url, "w", stages=("asr", "llm"))
    # The order of names does not matter.
    with pytest.raises(AtCapacity) as refused:
        await store.admission.reserve("x", "t1", ("llm", "asr"))
    assert refused.value.position == 2
    await store.admission.reserve("b", "t1", ("asr",))
    assert not waiter.done()
    await store.admission.release("a")
    assert set((await waiter).placements) == {"asr", "llm"}


async def test_a_stage_that_nobody_offers_is_told_at_once_even_to_who_waits(store: Store, valkey_url: str) -> None:
    with pytest.raises(StagesUnavailable):
        await store.admission.reserve("a", "t1", ("asr",), wait_ms=LONG_MS)
    await store.registry.beat(beat("r1", slots=1))
    await store.admission.reserve("b", "t1", ("asr",))
    task = await _queued(store, valkey_url, "w")
    await store.registry.remove("r1")
    with pytest.raises(StagesUnavailable):
        await task
    assert await _leftovers(valkey_url) == []


async def test_a_conversation_that_lost_a_stage_goes_before_those_who_wait(store: Store, valkey_url: str) -> None:
    await store.registry.beat(beat("r1", "asr", slots=1))
    await store.registry.beat(beat("r2", "llm", slots=1))
    await store.admission.reserve("live", "t1", ("asr", "llm"))
    await store.admission.confirm("live")
    async with store_with(valkey_url, queue_poll_ms=2_000, waiter_ttl_ms=8_000) as slow:
        waiter = await _queued(slow, valkey_url, "w")
        await slow.registry.beat(beat("r3", "asr", slots=1))
        placed = (await slow.admission.reserve("live", "t1", ("asr",), avoid=("r1",))).placements
        assert placed["asr"].replica_id == "r3"
        waiter.cancel()
        await asyncio.wait([waiter])


async def test_a_dead_waiter_is_passed_over(store: Store, valkey_url: str) -> None:
    async with store_with(valkey_url, waiter_ttl_ms=200) as brief:
        await brief.registry.beat(beat("r1", slots=1))
        await brief.admission.reserve("a", "t1", ("asr",))
        # A process that was killed asks no more and says no goodbye.
        assert await _ask(brief, "dead", wait_ms=LONG_MS) == b"wait"
        task = await _queued(brief, valkey_url, "w")
        await brief.admission.release("a")
        await task
        assert await _waiting(valkey_url) == ["dead"]
        # At its deadline it is forgotten.
        async with Redis.from_url(valkey_url) as admin:
            await admin.zadd(f"{POOL}:waiting", {"dead": 1})
        with pytest.raises(AtCapacity) as refused:
            await brief.admission.reserve("x", "t1", ("asr",))
        assert refused.value.position == 1
        assert await _leftovers(valkey_url) == []


async def _ask(store: Store, session: str, tenant: str = "t1", limit: int = 0, wait_ms: int = 0) -> bytes:
    """One question as a waiter asks it: what comes of it does not hang on who happens to ask first."""
    answer = await store.admission._pool.run("reserve", session, tenant, limit, 0, '["asr"]', "[]", wait_ms)
    return bytes(answer[0])


async def test_a_tenants_allowance_goes_to_its_first_waiter_though_there_is_room(store: Store) -> None:
    await store.registry.beat(beat("r1", slots=9))
    await store.admission.reserve("a", "t1", ("asr",), 1)
    assert [await _ask(store, f"c{n}", limit=1, wait_ms=LONG_MS) for n in range(2)] == [b"wait", b"wait"]
    await store.admission.release("a")
    with pytest.raises(TenantLimit):
        await store.admission.reserve("late", "t1", ("asr",), 1)
    assert await _ask(store, "other", "t2", 1) == b"ok"
    assert await _ask(store, "c1", limit=1) == b"wait"
    assert await _ask(store, "c0", limit=1) == b"ok"
    assert await _ask(store, "c1", limit=1) == b"wait"
    await store.admission.release("c0")
    assert await _ask(store, "c1", limit=1) == b"ok"


async def test_room_for_all_who_wait_is_taken_in_any_order(store: Store) -> None:
    await store.registry.beat(beat("r1", slots=2))
    for session in ("a", "b"):
        await store.admission.reserve(session, "t1", ("asr",))
    assert [await _ask(store, f"w{n}", wait_ms=LONG_MS) for n in range(3)] == [b"wait"] * 3
    await store.admission.release("a")
    await store.admission.release("b")
    assert [await _ask(store, f"w{n}") for n in (2, 1, 2, 0)] == [b"wait", b"ok", b"wait", b"ok"]


async def test_who_asks_at_its_deadline_still_has_its_turn(store: Store, valkey_url: str) -> None:
    await store.registry.beat(beat("r1", slots=1))
    await store.admission.reserve("a", "t1", ("asr",))
    assert [await _ask(store, f"w{n}", wait_ms=LONG_MS) for n in range(2)] == [b"wait", b"wait"]
    async with Redis.from_url(valkey_url) as admin:
        await admin.zadd(f"{POOL}:waiting", {"w0": 1})
    await store.admission.release("a")
    assert await _ask(store, "w0") == b"ok"
    await store.admission.release("w0")
    assert await _ask(store, "w1") == b"ok"


@pytest.mark.behaviour("L7")
async def test_a_cancelled_waiter_leaves_nothing_wherever_it_is(store: Store, valkey_url: str) -> None:
    await store.registry.beat(beat("r1", slots=1))
    rng = random.Random(3)
    for n in range(60):
        if n % 2:
            await store.admission.reserve("a", "t1", ("asr",))
        task = _wait(store, "w")
        for _ in range(rng.randrange(12)):
            await asyncio.sleep(0)
        await asyncio.sleep(rng.choice((0, 0, 0.001, 0.002)))
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            await store.admission.release("w")
        await store.admission.release("a")
        assert await used(store) == {}
        assert await _leftovers(valkey_url) == []
    assert await slot_members(valkey_url) == {}


async def test_a_listener_that_fails_leaves_no_waiter(store: Store, valkey_url: str) -> None:
    await store.registry.beat(beat("r1", slots=1))
    await store.admission.reserve("a", "t1", ("asr",))

    def fail(position: int) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        await store.admission.reserve("w", "t1", ("asr",), wait_ms=LONG_MS, on_position=fail)
    assert await _leftovers(valkey_url) == []


@pytest.mark.behaviour("X7")
async def test_a_burst_of_waiters_is_decided_in_time_and_never_over_capacity(store: Store, valkey_url: str) -> None:
    for n in range(3):
        await store.registry.beat(beat(f"r{n}", "asr", "llm", slots=10))
    async with store_with(valkey_url) as second, store_with(valkey_url) as third:
        gateways = (store, second, third)

        async def open_one(n: int) -> str:
            admission = gateways[n % 3].admission
            try:
                await admission.reserve(f"s{n}", f"t{n % 4}", ("asr", "llm"), 10, wait_ms=2_000)
            except (AtCapacity, TenantLimit) as error:
                return type(error).__name__
            assert all(taken <= 10 for taken in (await used(store)).values())
            return "admitted"

        outcomes = await asyncio.gather(*(open_one(n) for n in range(200)))
    assert outcomes.count("admitted") == 30
    assert set(outcomes) == {"admitted", "AtCapacity", "TenantLimit"} or set(outcomes) == {"admitted", "AtCapacity"}
    assert await used(store) == {(f"r{n}", stage): 10 for n in range(3) for stage in ("asr", "llm")}
    assert await _leftovers(valkey_url) == []
    assert await keys_without_ttl(valkey_url) == []


@pytest.mark.behaviour("X7")
async def test_many_slots_that_come_free_at_once_are_taken_promptly(store: Store, valkey_url: str) -> None:
    await store.registry.beat(beat("r1", slots=40))
    for n in range(40):
        await store.admission.reserve(f"a{n}", "t1", ("asr",))
    tasks = [_wait(store, f"w{n}") for n in range(40)]

    async def all_wait() -> bool:
        return len(await _waiting(valkey_url)) == 40

    await until(all_wait)
    await asyncio.gather(*(store.admission.release(f"a{n}") for n in range(40)))
    await asyncio.gather(*tasks)  # raises AtCapacity for whoever was not served within its patience


async def test_a_wipe_refuses_who_waits_instead_of_forgetting_it(store: Store, valkey_url: str) -> None:
    await store.registry.beat(beat("r1", slots=1))
    await store.admission.reserve("a", "t1", ("asr",))
    task = await _queued(store, valkey_url, "w")
    async with Redis.from_url(valkey_url) as admin:
        await admin.flushall()
    with pytest.raises(StoreError):
        await task
    assert await _leftovers(valkey_url) == []
