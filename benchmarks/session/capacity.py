"""How much CPU time a gateway needs for conversations of 100 ms audio in and out, beside a bare echo of the same messages."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.session import histograms
from benchmarks.session.crowd import Crowd
from benchmarks.session.fleet import Fleet, Meter
from benchmarks.session.load import LATE_MS, PIECE_MS
from tests.support.process import Child

TITLE = "One gateway process"
GOAL = 1.0
"""CPU-seconds a second with GOAL_CONVERSATIONS."""
GOAL_CONVERSATIONS = 200
PROBE = 20
TRIALS = 4
LATE_SHARE = 0.001
"""With more late sends than this, the machine does not carry the trial."""
HEARD_SHARE = 0.98
"""With fewer pieces heard than this of those sent, replies broke off or came late."""
HEADROOM = 0.85
"""Share of the machine that a trial may need by the probe's word."""
WARM_UP_S = 3.0


async def measure(most: int, seconds: float) -> dict[str, Any]:
    trials: list[dict[str, Any]] = []
    async with Fleet(slots=most + 8) as fleet:
        wanted = min(PROBE, most)
        while True:
            trials.append(await _trial(fleet, wanted, seconds))
            following = _next(trials, most)
            if following is None:
                break
            wanted = following
    carried = max((trial for trial in trials if trial["carried"]), key=lambda trial: trial["conversations"], default=trials[0])
    return {"trials": trials, "carried": carried, "most": most, "echo": await _echo(carried["conversations"], seconds)}


def _next(trials: list[dict[str, Any]], most: int) -> int | None:
    """Conversations of the next trial: what the probe says that fits, then fewer until nobody is late."""
    last = trials[-1]
    if len(trials) == 1 and last["carried"]:
        fits = int(last["conversations"] * HEADROOM * (os.cpu_count() or 1) / last["house_cpu"])
        return min(most, fits) if fits > last["conversations"] and most > last["conversations"] else None
    if last["carried"] or len(trials) >= TRIALS:
        return None
    fewer = last["conversations"] * 3 // 4
    return fewer if fewer > trials[0]["conversations"] else None


async def _trial(fleet: Fleet, conversations: int, seconds: float) -> dict[str, Any]:
    gateway = fleet.gateways[0]
    async with Crowd(fleet.address, conversations) as crowd:
        await crowd.open()
        await crowd.speak()
        await asyncio.sleep(WARM_UP_S)
        groups = {
            "gateway": [gateway.process.pid],
            "stages": [child.process.pid for child in fleet.stages],
            "valkey": [fleet.valkey.pid],
            "load": crowd.pids,
        }
        before, meter = histograms.read(fleet.address), Meter(groups)
        await crowd.measure()
        await asyncio.sleep(seconds)
        cpu, after, counts = meter.read(), histograms.read(fleet.address), await crowd.stop()
    late = counts["late"] / max(counts["sent"], 1)
    commits = histograms.since(before["parley_gateway_commit_seconds"], after["parley_gateway_commit_seconds"])
    return {
        "conversations": conversations,
        "cpu": cpu,
        "house_cpu": sum(cpu[name] for name in groups),
        "carried": late <= LATE_SHARE and not counts["lost"] and counts["deltas"] >= HEARD_SHARE * counts["sent"],
        "commits_per_s": commits[float("inf")] / seconds,
        **counts,
    }


async def _echo(conversations: int, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="parley-bench-") as folder:
        child = Child("echo", ["-m", "benchmarks.session.echo"], {}, Path(folder))
        child.start()
        try:
            await asyncio.to_thread(child.wait_ready)
            async with Crowd(child.ready["http"], conversations) as crowd:
                await crowd.open()
                await crowd.speak()
                await asyncio.sleep(1.0)
                meter = Meter({"echo": [child.process.pid]})
                await crowd.measure()
                await asyncio.sleep(seconds / 2)
                cpu = meter.read()
                counts = await crowd.stop()
        finally:
            await asyncio.to_thread(child.stop)
    return {"conversations": conversations, "cpu": cpu["echo"], **counts}


def extrapolated(raw: dict[str, Any]) -> float:
    """The gateway's CPU-seconds a second at the goal's conversations, by the line through the first trial and the largest carried."""
    largest, first = raw["carried"], raw["trials"][0]
    many, few = largest["conversations"], first["conversations"]
    if many == few:
        return float(largest["cpu"]["gateway"] * GOAL_CONVERSATIONS / many)
    slope = (largest["cpu"]["gateway"] - first["cpu"]["gateway"]) / (many - few)
    return float(largest["cpu"]["gateway"] + slope * (GOAL_CONVERSATIONS - many))


def section(raw: dict[str, Any]) -> str:
    groups = ("gateway", "stages", "valkey", "load", "others")
    rows = [
        [
            trial["conversations"],
            *(f"{trial['cpu'][name]:.2f}" for name in groups),
            f"{trial['late']:.0f} of {trial['sent']:.0f}",
            f"{trial['worst_late_ms']:.0f}",
            f"{trial['deltas'] / max(trial['sent'], 1):.2f}",
            "yes" if trial["carried"] else "no",
        ]
        for trial in raw["trials"]
    ]
    header = ("conversations", *groups, f"late (over {LATE_MS:.0f} ms)", "worst, ms", "out per in", "carried")
    largest, echo = raw["carried"], raw["echo"]
    cpu, count = largest["cpu"]["gateway"], largest["conversations"]
    lines = [
        "CPU-seconds a second of each group of processes:",
        "",
        report.table(header, rows),
        "",
        f"Each conversation sends and hears {PIECE_MS} ms of PCM16 ten times a second, journal on, stub stages in four other processes.",
        f"The gateway: {cpu:.2f} CPU-seconds a second with {count} conversations, {cpu / count * 1000:.1f} ms each;",
        f"{largest['commits_per_s']:.0f} commits a second. A bare `websockets` echo of the same messages: {echo['cpu']:.2f} with",
        f"{echo['conversations']} conversations, {echo['cpu'] / echo['conversations'] * 1000:.1f} ms each.",
    ]
    if count < GOAL_CONVERSATIONS:
        lines.append(
            f"This machine does not carry {GOAL_CONVERSATIONS} conversations together with their stages and their load: {count} is what it"
            f" carried. By the line through what was carried (in proportion, if that is one trial) the gateway would need"
            f" {extrapolated(raw):.2f} with {GOAL_CONVERSATIONS} (goal: under {GOAL:.1f}); that is extrapolated, not measured."
        )
    else:
        lines.append(f"Goal: under {GOAL:.1f} with {GOAL_CONVERSATIONS}.")
    return "\n".join(lines)
