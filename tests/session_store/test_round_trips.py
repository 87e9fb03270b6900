"""What an admission and a takeover cost is counted in calls of Redis, since test machines are busy; `make bench-session` has the times."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from session_store import Store
from session_store.tokens import digest, new_token
from tests.session_store.helpers import beat, commit, resume, store_with, used

OPENS = 120
STAGES = ("asr", "llm", "talker", "vocoder")


@asynccontextmanager
async def counted(url: str) -> AsyncIterator[list[int]]:
    """Scripts that Redis runs while inside: how many, at the end."""
    found = list[int]()
    async with Redis.from_url(url) as admin:
        await admin.config_resetstat()
        yield found
        stats = await admin.info("commandstats")
        found.append(sum(stat["calls"] for name, stat in stats.items() if name.startswith(("cmdstat_eval", "cmdstat_fcall"))))


@pytest.mark.behaviour("X7")
async def test_who_finds_room_is_admitted_by_one_call_however_many_gateways_ask(store: Store, valkey_url: str) -> None:
    for n in range(4):
        await store.registry.beat(beat(f"r{n}", *STAGES, slots=OPENS // 4))
    async with store_with(valkey_url) as second, store_with(valkey_url) as third:
        async with counted(valkey_url) as calls:
            gateways = (store, second, third)
            await asyncio.gather(*(gateways[n % 3].admission.reserve(f"s{n}", "t1", STAGES, 10_000, wait_ms=20_000) for n in range(OPENS)))
        assert calls == [OPENS]
        assert await used(store) == {(f"r{n}", stage): OPENS // 4 for n in range(4) for stage in STAGES}


@pytest.mark.behaviour("R2")
@pytest.mark.parametrize(("events", "size"), [(0, 0), (300, 1_000), (600, 13_000)])
async def test_a_takeover_is_two_calls_however_much_there_is_to_replay(store: Store, valkey_url: str, events: int, size: int) -> None:
    token = new_token()
    lease = await store.records.create("s1", "g1", "h1", "t1", "p", {}, token_digest=digest(token))
    await store.records.commit(commit(lease, 1))
    for seq in range(1, events + 1):
        await store.records.commit(commit(lease, seq, bytes(size), items=bytes(2_000)))
    async with counted(valkey_url) as calls:
        taken, _ = await resume(store, "s1", token, after_seq=0)
    assert len(taken.stored.journal) == events
    assert calls == [2]
