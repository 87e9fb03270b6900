"""`admit()` from three processes at once, beside one bare call at a time; and a burst that wants more than there is.

As `python -m benchmarks.session.admission` it is one of the gateways: it obeys one line of JSON on stdin and answers with one.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from benchmarks import report
from benchmarks.house import ROOT
from benchmarks.session.fleet import STAGES
from benchmarks.session.floor import evalsha_ms
from session_store import ReplicaBeat, StageOffer, Store, StoreSettings
from session_store.connection import Connection
from session_store.errors import AtCapacity, StoreError
from session_store.pool import Pool
from session_store.tokens import digest
from tests.support.valkey import ValkeyProcess

TITLE = "Admission"
GATEWAYS = 3
OPENS_PER_S = 200
BURST = 200
BURST_SLOTS = 120
GOAL_MS = 5.0
BURST_GOAL_MS = 250.0
LIMIT = 100_000


class Order(msgspec.Struct):
    """Open `count` sessions, the n-th at `begins` + n * `every_s` (monotonic seconds, the same clock in every process)."""

    count: int
    begins: float
    every_s: float
    whole: bool
    """Record and confirmation, too."""


class Opening(msgspec.Struct):
    """outcome: taken, full, or the name of an error. Times in ms; decided_ms counts from the order's beginning."""

    outcome: str
    reserve_ms: float
    whole_ms: float
    decided_ms: float


class Answer(msgspec.Struct):
    openings: list[Opening]


# one gateway


async def _open(store: Store, gateway: str, number: int, order: Order) -> Opening:
    session_id = f"sess_{gateway}_{number}"
    await asyncio.sleep(max(0.0, order.begins + number * order.every_s - time.monotonic()))
    began, decided, outcome = time.monotonic(), 0.0, "taken"
    try:
        reserved = await store.admission.reserve(session_id, "bench", STAGES, LIMIT, wait_ms=0)
        decided = time.monotonic()
        if order.whole:
            await store.records.create(session_id, gateway, "h", "bench", "bench", reserved.placements, token_digest=digest(session_id))
            await store.admission.confirm(session_id)
    except AtCapacity:
        outcome = "full"
    except StoreError as failure:
        outcome = type(failure).__name__
    ended = time.monotonic()
    decided = decided or ended
    return Opening(outcome, (decided - began) * 1000, (ended - began) * 1000, (decided - order.begins) * 1000)


async def gateway(url: str, name: str) -> None:
    async with await Store.open(url) as store:
        await store.registry.beat_gateway(name, "127.0.0.1:1")
        print("ready", flush=True)
        line = await asyncio.to_thread(sys.stdin.readline)
        order = msgspec.json.decode(line, type=Order)
        openings = await asyncio.gather(*(_open(store, name, number, order) for number in range(order.count)))
        print(msgspec.json.encode(Answer(list(openings))).decode(), flush=True)


# the house around it


async def _beats(store: Store, replicas: int, slots: int) -> None:
    for number in range(replicas):
        offers = tuple(StageOffer(stage, slots) for stage in STAGES)
        await store.registry.beat(ReplicaBeat(f"rep_{number}", "bench", f"127.0.0.1:{number + 1}", offers))


@asynccontextmanager
async def _replicas(store: Store, count: int, slots: int) -> AsyncIterator[None]:
    """Replicas with every stage, that beat and do nothing else."""

    async def beat() -> None:
        while True:
            await asyncio.sleep(1.0)
            await _beats(store, count, slots)

    await _beats(store, count, slots)
    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)


async def _order(url: str, counts: list[int], every_s: float, *, whole: bool) -> list[Opening]:
    """Every gateway begins at the same moment."""
    pipe = asyncio.subprocess.PIPE
    names = [f"gw{number}" for number in range(len(counts))]
    command = (sys.executable, "-m", "benchmarks.session.admission", url)
    processes = [
        await asyncio.create_subprocess_exec(*command, name, cwd=ROOT, stdin=pipe, stdout=pipe, limit=64 * 1024 * 1024) for name in names
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            if await process.stdout.readline() != b"ready\n":
                raise RuntimeError("an admission process did not start")
        begins = time.monotonic() + 0.3
        for number, (process, count) in enumerate(zip(processes, counts, strict=True)):
            order = Order(count, begins + number * every_s / len(counts), every_s, whole)
            process.stdin.write(msgspec.json.encode(order) + b"\n")  # type: ignore[union-attr]
        lines = await asyncio.gather(*(process.stdout.readline() for process in processes))  # type: ignore[union-attr]
        return [opening for line in lines for opening in msgspec.json.decode(line, type=Answer).openings]
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _steady(seconds: float) -> dict[str, Any]:
    count = int(OPENS_PER_S * seconds)
    replicas, slots = 4, count // 4 + 64
    with ValkeyProcess() as valkey:
        async with await Store.open(valkey.url) as store, _replicas(store, replicas, slots):
            floor = await asyncio.to_thread(evalsha_ms, valkey.url, _bare(store, valkey.url, 200), 0.005)
            shares = [count // GATEWAYS + (number < count % GATEWAYS) for number in range(GATEWAYS)]
            openings = await _order(valkey.url, shares, GATEWAYS / OPENS_PER_S, whole=True)
            over = _over(await store.registry.replicas())
    return {
        "opens_per_s": OPENS_PER_S,
        "seconds": seconds,
        "reserve_ms": [report.percentile([each.reserve_ms for each in openings], q) for q in (50, 99, 100)],
        "whole_ms": [report.percentile([each.whole_ms for each in openings], q) for q in (50, 99, 100)],
        "floor_ms": [report.percentile(floor, q) for q in (50, 99, 100)],
        "outcomes": _outcomes(openings),
        "over": over,
        "samples": {"reserve_ms": [each.reserve_ms for each in openings], "floor_ms": floor},
    }


def _bare(store: Store, url: str, count: int) -> list[Any]:
    """The same script with the same arguments."""
    pool = Pool(Connection(url, StoreSettings()), store.settings)
    names = json.dumps(STAGES)
    return [pool.call("reserve", f"sess_floor_{n}", "floor", LIMIT, n, names, "[]", 0) for n in range(count)]


async def _burst() -> dict[str, Any]:
    replicas = 2
    with ValkeyProcess() as valkey:
        async with await Store.open(valkey.url) as store, _replicas(store, replicas, BURST_SLOTS // replicas):
            shares = [BURST // GATEWAYS + (number < BURST % GATEWAYS) for number in range(GATEWAYS)]
            openings = await _order(valkey.url, shares, 0.0, whole=False)
            loads = await store.registry.replicas()
    return {
        "wanted": BURST,
        "slots": BURST_SLOTS,
        "decided_ms": max(each.decided_ms for each in openings),
        "decided_p50_ms": report.percentile([each.decided_ms for each in openings], 50),
        "outcomes": _outcomes(openings),
        "over": _over(loads),
        "samples": {"decided_ms": [each.decided_ms for each in openings]},
    }


def _outcomes(openings: list[Opening]) -> dict[str, int]:
    return dict(Counter(each.outcome for each in openings).most_common())


def _over(replicas: list[Any]) -> int:
    """Slots taken beyond what there are."""
    return sum(max(0, stage.used - stage.slots) for replica in replicas for stage in replica.stages)


async def measure(seconds: float) -> dict[str, Any]:
    return {"steady": await _steady(seconds), "burst": await _burst()}


def section(raw: dict[str, Any]) -> str:
    steady, burst = raw["steady"], raw["burst"]
    rows = [
        [f"reserve, {steady['opens_per_s']} opens/s for {steady['seconds']:.0f} s", *steady["reserve_ms"]],
        ["the script alone, bare EVALSHA, one at a time", *steady["floor_ms"]],
        ["reserve, record, confirm", *steady["whole_ms"]],
    ]
    return "\n".join(
        [
            report.table(("ms", "p50", "p99", "worst"), [[name, *(f"{value:.2f}" for value in values)] for name, *values in rows]),
            "",
            f"{GATEWAYS} gateways, each a process; goal: p99 of reserve under {GOAL_MS:.0f} ms. {_told(steady['outcomes'])};",
            f"slots over capacity: {steady['over']}.",
            f"A burst of {burst['wanted']} for {burst['slots']} slots: {_told(burst['outcomes'])}; all decided within",
            f"{burst['decided_ms']:.0f} ms (goal {BURST_GOAL_MS:.0f}), half within {burst['decided_p50_ms']:.0f} ms;",
            f"slots over capacity: {burst['over']}.",
        ]
    )


def _told(outcomes: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in outcomes.items())


if __name__ == "__main__":
    asyncio.run(gateway(*sys.argv[1:]))
