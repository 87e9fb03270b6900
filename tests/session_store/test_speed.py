"""How long an admission and a takeover take, printed; the bounds are wide, since test machines are busy."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from session_store import Store, StoreSettings
from session_store.tokens import digest, new_token
from tests.session_store.helpers import beat, commit, resume, store_with

OPENS_PER_S = 200
SECONDS = 2


def _report(what: str, took_s: list[float]) -> float:
    took_s.sort()
    p50, p99 = (took_s[int(len(took_s) * part)] * 1000 for part in (0.5, 0.99))
    print(f"{what}: {len(took_s)} calls, p50 {p50:.2f} ms, p99 {p99:.2f} ms, worst {took_s[-1] * 1000:.2f} ms")
    return p50


async def _timed(work: Coroutine[Any, Any, Any], into: list[float]) -> Any:
    loop = asyncio.get_running_loop()
    began = loop.time()
    answer = await work
    into.append(loop.time() - began)
    return answer


@pytest.mark.behaviour("X7")
async def test_admission_at_200_opens_a_second(store: Store, valkey_url: str) -> None:
    for n in range(4):
        await store.registry.beat(beat(f"r{n}", "asr", "llm", "talker", "vocoder", slots=OPENS_PER_S * SECONDS // 4))
    reserved, opened = list[float](), list[float]()
    async with store_with(valkey_url) as second, store_with(valkey_url) as third:
        gateways = (store, second, third)

        async def open_one(n: int) -> None:
            gateway, session = gateways[n % 3], f"s{n}"
            stages = ("asr", "llm", "talker", "vocoder")
            answer = await _timed(gateway.admission.reserve(session, "t1", stages, 10_000, wait_ms=2_000), reserved)
            await gateway.records.create(session, f"g{n % 3}", "h1", "t1", "p", answer.placements, token_digest=digest("t"))
            await gateway.admission.confirm(session)

        loop = asyncio.get_running_loop()
        began, tasks = loop.time(), []
        for n in range(OPENS_PER_S * SECONDS):
            # The rate is what is tested.
            await asyncio.sleep(max(0.0, began + n / OPENS_PER_S - loop.time()))
            tasks.append(asyncio.create_task(_timed(open_one(n), opened)))
        await asyncio.gather(*tasks)
    assert _report(f"reserve at {OPENS_PER_S} opens/s over 3 gateways", reserved) < 50
    assert _report("reserve, create, confirm", opened) < 100


@pytest.mark.behaviour("R2")
@pytest.mark.parametrize(("events", "size"), [(0, 0), (300, 1_000), (600, 13_000)])
async def test_takeover(store: Store, events: int, size: int) -> None:
    token, took_s = new_token(), list[float]()
    lease = await store.records.create("s1", "g1", "h1", "t1", "p", {}, token_digest=digest(token))
    await store.records.commit(commit(lease, 1))
    for seq in range(1, events + 1):
        await store.records.commit(commit(lease, seq, bytes(size), items=bytes(2_000)))
    for _ in range(50):
        taken, token = await _timed(resume(store, "s1", token, after_seq=0), took_s)
        assert len(taken.stored.journal) == events
    assert _report(f"takeover with {events * size / 2**20:.1f} MiB of journal", took_s) < StoreSettings().redis_timeout_ms
