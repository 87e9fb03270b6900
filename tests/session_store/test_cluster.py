"""A Redis Cluster serves the store: every script keeps to one hash slot."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from unittest.mock import ANY

import pytest
from redis.asyncio import Redis

from session_store import ApiKey, AtCapacity, ClientSecret, Committed, Lease, Reaped, Store, StoreSettings
from session_store.tokens import digest
from tests.session_store.helpers import beat, commit, create, forget_silence, pass_deadline, resume, until, used
from tests.support.proxy import free_port
from tests.support.valkey import ValkeyProcess


@pytest.fixture
def ports() -> tuple[int, int]:
    return free_port(), free_port()


@pytest.fixture
def node(ports: tuple[int, int]) -> Iterator[ValkeyProcess]:
    options = ("--cluster-enabled", "yes", "--bind", "127.0.0.1", "--cluster-port", str(ports[1]), "--port", str(ports[0]))
    with ValkeyProcess(*options) as process:
        yield process


@pytest.mark.parametrize("clustered", [False, True])
async def test_every_script_keeps_to_one_slot(node: ValkeyProcess, ports: tuple[int, int], clustered: bool) -> None:
    async with Redis.from_url(node.url) as admin:
        await admin.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)

        async def formed() -> bool:
            return b"cluster_state:ok" in await admin.execute_command("CLUSTER", "INFO")

        await until(formed)
    url = f"redis+cluster://127.0.0.1:{ports[0]}" if clustered else node.url
    async with await Store.open(url, StoreSettings(redis_timeout_ms=5_000, orphan_after_ms=1, replica_ttl_ms=600_000)) as store:
        await store.registry.beat_gateway("g1", "ws://one")
        await store.registry.beat(beat("r1", "asr", "llm", slots=7, held=("zombie",)))
        leases = []
        for n in range(6):
            placed = (await store.admission.reserve(f"s{n}", "t1", ("asr", "llm"))).placements
            await store.admission.confirm(f"s{n}")
            leases.append(await create(store, f"s{n}", placements=placed, token="token"))
        done = await asyncio.gather(*(store.records.commit(commit(lease, 1, b"x", items=b"y")) for lease in leases))
        assert done == [Committed(1, 1)] * 6
        assert (await store.records.renew("g1", leases)).lost == {}
        await store.registry.remove("r1")
        await forget_silence(node.url)
        held = beat("r1", "asr", "llm", slots=6, held=[f"s{n}" for n in range(6)])
        assert await store.registry.beat(held) == ()
        assert await used(store) == {("r1", "asr"): 6, ("r1", "llm"): 6}
        await store.admission.quarantine("s0", "asr")
        assert len(await store.admission.quarantined()) == 1
        assert await store.records.detach(leases[0])
        assert await store.records.expire("s0") is None
        assert await store.records.reapable() == []
        await pass_deadline(node.url, "s0", "grace")
        assert await store.records.reapable() == ["s0"]
        assert await store.records.reap("s0", "g2", "reaper") == Reaped(ANY, ANY, "disconnect_grace_expired")
        leases[0] = Lease("s0", (await store.records.load("s0")).record.attachment, "reaper")
        leases[1] = (await resume(store, "s1", "token", after_seq=1))[0].lease
        assert await store.records.settle_token(leases[1])
        await store.records.restore(leases[1], "g2", "t1", "profile", {})
        assert await store.records.begin_close(leases[1], "done")
        with pytest.raises(AtCapacity):
            await store.admission.reserve("late", "t1", ("asr", "llm"), wait_ms=50)
        for lease in leases:
            assert (await store.records.load(lease.session_id)).fields == {"items": b"y"}
            assert await store.records.close(lease, "done")
            await store.admission.release(lease.session_id)
        await store.registry.beat(beat("r1", "asr", "llm", slots=6))
        assert await used(store) == {}
        assert [g.gateway_id for g in await store.registry.gateways()] == ["g1"]
        await store.registry.remove_gateway("g1")
        assert await store.registry.mute_ms() == 0
        key = ApiKey(id="k1", tenant="t1", sha256=digest("key"))
        await store.api_keys.put(key)
        assert await store.api_keys.find(key.sha256) == key and await store.api_keys.list() == [key]
        assert await store.api_keys.revoke("k1")
        secret = ClientSecret(key_id="k1", tenant="t1")
        await store.client_secrets.put(digest("secret"), secret, 60)
        assert await store.client_secrets.find(digest("secret")) == secret
        assert [await store.rates.take("k1", "opens", 1) > 0 for _ in range(2)] == [False, True]
