"""Keys: hash slots, time to live, and nothing left behind."""

from __future__ import annotations

import asyncio
import random

import pytest
from redis.asyncio import Redis
from redis.crc import key_slot

from session_store import AtCapacity, Store, StoreError
from session_store.keys import POOL, check_id, check_stage, session_keys
from tests.session_store.helpers import beat, commit, create, forget_silence, keys_without_ttl, resume, slot_members, used


def test_one_sessions_keys_share_a_slot_and_so_do_the_pools() -> None:
    assert session_keys("sess_1") == ("parley:{sess_1}:rec", "parley:{sess_1}:ckpt", "parley:{sess_1}:jrnl", "parley:{sess_1}:jhead")
    assert len({key_slot(key.encode()) for key in session_keys("sess_1")}) == 1
    assert key_slot(f"{POOL}:slots:r1:asr".encode()) == key_slot(f"{POOL}:replicas".encode())


@pytest.mark.parametrize("bad", ["", "a b", "a}b", "{a}", "ä", "x" * 129, "a\n"])
def test_ids_that_no_key_can_carry(bad: str) -> None:
    with pytest.raises(ValueError):
        check_id(bad)


@pytest.mark.parametrize("bad", ["", "Asr", "1st", "a:b", "a-b", "x" * 65])
def test_stage_names_that_no_key_can_carry(bad: str) -> None:
    with pytest.raises(ValueError):
        check_stage(bad)


async def _live(store: Store, n: int) -> None:
    session = f"s{n}"
    rng = random.Random(n)
    try:
        reserved = await store.admission.reserve(session, f"t{n % 3}", ("asr", "llm"), 20, wait_ms=(n % 2) * 100)
    except AtCapacity:
        return
    if rng.random() < 0.2:
        await store.admission.release(session)
        return
    lease = await create(store, session, placements=reserved.placements, token="token")
    await store.admission.confirm(session)
    for seq in range(1, 4):
        await store.records.commit(commit(lease, seq, b"event", items=b"x", config=b"y" if seq < 3 else None))
    await store.records.renew("g1", [lease])
    if rng.random() < 0.3:
        await store.records.detach(lease)
        lease = (await resume(store, session, "token", after_seq=3))[0].lease
        await store.records.settle_token(lease)
    if rng.random() < 0.5:
        await store.records.begin_close(lease, "client_close")
    await store.records.close(lease, "client_close")
    if rng.random() < 0.3:
        await store.admission.quarantine(session, "asr")
    await store.admission.release(session)


@pytest.mark.behaviour("X7")
async def test_after_every_session_ended_no_slot_is_taken_and_every_key_has_a_ttl(store: Store, valkey_url: str) -> None:
    await store.registry.beat_gateway("g1", "ws://one")
    for replica in ("r1", "r2"):
        await store.registry.beat(beat(replica, "asr", "llm", slots=6))
    await forget_silence(valkey_url)
    for round_ in range(5):
        await asyncio.gather(*(_live(store, n) for n in range(round_ * 20, round_ * 20 + 20)))
        assert await keys_without_ttl(valkey_url) == []
        for replica in ("r1", "r2"):
            await store.registry.beat(beat(replica, "asr", "llm", slots=6))
    assert await used(store) == {}
    assert await slot_members(valkey_url) == {}
    async with Redis.from_url(valkey_url) as admin:
        left = {key async for key in admin.scan_iter() if not key.endswith(b":rec")}
    assert left <= {
        f"{POOL}:{n}".encode()
        for n in ("clock", "replicas", "replica:r1", "replica:r2", "stage:asr", "stage:llm", "gateways", "gateway_addresses")
    }


async def test_a_wipe_in_the_middle_leaves_a_store_that_works(store: Store, valkey_url: str) -> None:
    await store.registry.beat(beat("r1", "asr", "llm", slots=4))
    reserved = await store.admission.reserve("s1", "t1", ("asr", "llm"))
    lease = await create(store, "s1", placements=reserved.placements)
    await store.admission.confirm("s1")
    async with Redis.from_url(valkey_url) as admin:
        await admin.flushall()
    with pytest.raises(StoreError):
        await store.records.commit(commit(lease, 1, b"x"))
    held = beat("r1", "asr", "llm", slots=4, held=("s1",))
    assert await store.registry.beat(held) == ()
    again = await create(store, "s1", placements=reserved.placements)
    assert await store.registry.beat(held) == ()
    assert (await store.admission.reserve("s1", "t1", ("asr", "llm"))).placements == reserved.placements
    await store.records.close(again, "client_close")
    await store.admission.release("s1")
    await store.registry.beat(beat("r1", "asr", "llm", slots=4))
    assert await used(store) == {}
    assert await slot_members(valkey_url) == {}
    assert await keys_without_ttl(valkey_url) == []
