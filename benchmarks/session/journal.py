"""What journal and checkpoint add to an output delta, beside the same bytes from a bare client to the same Valkey."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from typing import Any

from benchmarks import report
from benchmarks.session import histograms
from benchmarks.session.crowd import Crowd
from benchmarks.session.fleet import Fleet, Meter
from benchmarks.session.floor import evalsha_ms
from benchmarks.session.load import PIECE_MS
from session_store import Commit, Lease, Store
from session_store.commit import commit_call
from session_store.connection import Call

TITLE = "Journal and checkpoint, for an output delta"
GOAL_MS = (1.5, 5.0)
WARM_UP_S = 3.0
FLOOR_PAUSE_S = 0.02
CHANGING = ("aside", "edges")
"""Fields of a checkpoint that a delta changes."""
COMMIT, DELTA = "parley_gateway_commit_seconds", "parley_gateway_chunk_to_client_seconds"


async def measure(conversations: int, seconds: float) -> dict[str, Any]:
    async with Fleet(slots=conversations + 8) as fleet, Crowd(fleet.address, conversations, microphones=False) as crowd:
        session_ids = await crowd.open()
        await crowd.speak()
        await asyncio.sleep(WARM_UP_S)
        sample = await _sample(fleet.valkey.url, session_ids[0])
        before, meter = histograms.read(fleet.address), Meter({"gateway": [fleet.gateways[0].process.pid]})
        began = time.perf_counter()
        calls = await _floor_calls(fleet.valkey.url, sample, int(seconds / FLOOR_PAUSE_S))
        floor_busy = await asyncio.to_thread(evalsha_ms, fleet.valkey.url, calls, FLOOR_PAUSE_S)
        await asyncio.sleep(max(0.0, began + seconds - time.perf_counter()))
        took_s, after, cpu = time.perf_counter() - began, histograms.read(fleet.address), meter.read()
        await crowd.stop()
        calls = await _floor_calls(fleet.valkey.url, sample, 500)
        floor_quiet = await asyncio.to_thread(evalsha_ms, fleet.valkey.url, calls, 0.002)
        commits, deltas = (histograms.since(before[name], after[name]) for name in (COMMIT, DELTA))
    return {
        "conversations": conversations,
        "commit_ms": _pair(commits),
        "commits_in_goal": {f"{ms} ms": histograms.share_within(commits, ms / 1000) for ms in GOAL_MS},
        "commits_per_s": commits[float("inf")] / took_s,
        "deltas_per_s": deltas[float("inf")] / took_s,
        "chunk_to_client_ms": _pair(deltas),
        "floor_busy_ms": [report.percentile(floor_busy, q) for q in (50, 99)],
        "floor_quiet_ms": [report.percentile(floor_quiet, q) for q in (50, 99)],
        "bytes": {"hot": len(sample.hot), "fields": sum(len(v or b"") for v in sample.fields.values()), "entry": len(sample.entries[0][1])},
        "delivered": deltas[float("inf")] / (took_s * conversations * 1000 / PIECE_MS),
        "cpu": cpu,
        "samples": {"floor_busy_ms": floor_busy, "floor_quiet_ms": floor_quiet},
    }


def _pair(counts: histograms.Counts) -> list[float]:
    return [histograms.quantile_ms(counts, q) for q in (0.5, 0.99)]


async def _sample(url: str, session_id: str) -> Commit:
    """What a live session writes with one delta of audio."""
    async with await Store.open(url) as store:
        stored = await store.records.load(session_id)
    entry = max(stored.journal, key=lambda entry: len(entry.payload))
    fields = {name: stored.fields[name] for name in CHANGING}
    return Commit(Lease(session_id, 0, "floor"), 1, [(entry.head, entry.payload)], stored.hot, fields)


async def _floor_calls(url: str, sample: Commit, count: int) -> Iterator[Call]:
    async with await Store.open(url) as store:
        lease = await store.records.create(f"sess_{uuid.uuid4().hex}", "gw_floor", "floor", "floor", "floor", {})
        settings = store.settings
    written = (Commit(lease, seq, sample.entries, sample.hot, sample.fields) for seq in range(1, count + 1))
    return (commit_call(commit, settings)[0] for commit in written)


def section(raw: dict[str, Any]) -> str:
    rows = [
        ["commit, in the gateway", *raw["commit_ms"]],
        ["same bytes, bare EVALSHA, beside it", *raw["floor_busy_ms"]],
        ["same bytes, bare EVALSHA, alone", *raw["floor_quiet_ms"]],
        ["goal", *GOAL_MS],
        ["stage chunk to socket write, commit included", *raw["chunk_to_client_ms"]],
    ]
    size, within = raw["bytes"], ", ".join(f"{share * 100:.1f} % within {ms}" for ms, share in raw["commits_in_goal"].items())
    return "\n".join(
        [
            report.table(("ms", "p50", "p99"), [[name, f"{p50:.2f}", f"{p99:.2f}"] for name, p50, p99 in rows]),
            "",
            f"{raw['conversations']} conversations, {raw['commits_per_s']:.0f} commits and {raw['deltas_per_s']:.0f} deltas a second;",
            f"of the commits {within}. A delta's commit: {size['entry']} bytes of journal, {size['hot']} of hot checkpoint,",
            f"{size['fields']} of other fields. All listen and none speaks:",
            f"{raw['delivered'] * 100:.0f} % of the sound came in its time (far from 100: the machine was too busy for any figure here).",
            f"The gateway used {raw['cpu']['gateway']:.2f} CPU-seconds a second, all else on the machine {raw['cpu']['others']:.2f}.",
        ]
    )
