"""Nobody's clock but Redis' counts."""

from __future__ import annotations

import ast
import asyncio
import time
from pathlib import Path

import pytest
from redis.asyncio import Redis

import session_store
from session_store import Store
from tests.session_store.helpers import beat, commit, create, resume, store_with, used

TEN_MINUTES_S = 600.0
_CLOCKS = {"time", "datetime", "calendar"}


def test_the_package_reads_no_clock() -> None:
    for path in Path(session_store.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else []
            )
            assert not _CLOCKS & {name.split(".")[0] for name in names}, path.name
            assert not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "time"), path.name


@pytest.mark.behaviour("X8")
@pytest.mark.parametrize("skew_s", [-TEN_MINUTES_S, TEN_MINUTES_S])
async def test_skewed_gateways_agree_on_everything(store: Store, valkey_url: str, monkeypatch: pytest.MonkeyPatch, skew_s: float) -> None:
    true_time, true_time_ns = time.time, time.time_ns
    async with store_with(valkey_url) as skewed, Redis.from_url(valkey_url) as admin:
        await store.registry.beat(beat("r1", slots=2))
        first = (await store.admission.reserve("s1", "t1", ("asr",))).placements["asr"]
        lease = await create(store, "s1")

        monkeypatch.setattr(time, "time", lambda: true_time() + skew_s)
        monkeypatch.setattr(time, "time_ns", lambda: true_time_ns() + int(skew_s * 1e9))
        await skewed.registry.beat(beat("r2", slots=2))
        second = (await skewed.admission.reserve("s2", "t1", ("asr",))).placements["asr"]
        await asyncio.gather(skewed.admission.confirm("s1"), skewed.admission.confirm("s2"))
        assert (await skewed.records.renew("g1", [lease])).lost == {}
        await skewed.records.commit(commit(lease, 1, b"x"))
        record = (await skewed.records.load("s1")).record
        later = await create(skewed, "s2", token="t")
        resumed, _ = await resume(skewed, "s2", "t")
        assert await skewed.records.detach(resumed.lease)
        assert await skewed.records.reapable() == []
        detached = (await skewed.records.load("s2")).record
        assert resumed.lease.attachment > later.attachment
        seconds, _ = await admin.time()
        monkeypatch.undo()

        assert lease.attachment < later.attachment and first.placement < second.placement
        assert abs(record.lease_deadline_ms - (seconds * 1000 + 15_000)) < 5_000
        assert abs(detached.grace_deadline_ms - (seconds * 1000 + 30_000)) < 5_000
        assert await used(store) == {("r1", "asr"): 1, ("r2", "asr"): 1}
        assert sorted(r.replica_id for r in await store.registry.replicas()) == ["r1", "r2"]
