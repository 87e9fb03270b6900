"""One level of load: clients in processes of their own, what they found, and what it cost."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from benchmarks import report
from benchmarks.native.load_client import Order
from benchmarks.native.talk import LATE_SEND_MS, UNIT_MS, Talk, Unit, units

ROOT = Path(__file__).parents[2]
SKIPPED = 4
"""Units of each client that are not counted: three that must listen, and the first behind them."""
LEAD_S = 4.0
_TICKS = os.sysconf("SC_CLK_TCK")
T = TypeVar("T")


class Level(msgspec.Struct, frozen=True):
    """sessions at once, for `seconds` units each. phases: `step` (all units end at once) or `spread` (evenly over a unit)."""

    sessions: int
    phases: str
    seconds: int
    video: float = 0.0
    """Share of clients that send a picture a second."""
    cancels: bool = False
    clients: int = 8
    """Processes that speak."""


async def run(
    level: Level, addresses: list[str], picture: bytes, pids: Mapping[str, int], stages: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Lag, first sound, holes, misses, late sends, CPU of each process, steps of the services at `stages`: a row of the table, with all
    samples."""
    begins = time.monotonic() + LEAD_S + level.sessions / 40
    orders = _orders(level, addresses, begins, picture)
    stages = stages or {}
    before, began = {name: _cpu_s(pid) for name, pid in pids.items()}, time.monotonic()
    steps = {name: await asyncio.to_thread(_steps, address) for name, address in stages.items()}
    answers = await asyncio.gather(*(obeyed("benchmarks.native.load_client", order, list[Talk]) for order in orders))
    took = time.monotonic() - began
    cpu = {name: (_cpu_s(pid) - before[name]) / took for name, pid in pids.items()}
    spoke = level.seconds + 1.0
    told = {name: [after - first for after, first in zip(_steps(address), steps[name], strict=True)] for name, address in stages.items()}
    busy = {
        name: {"busy": seconds / spoke, "steps": count / spoke, "slots": slots / max(count, 1)}
        for name, (seconds, count, slots) in told.items()
    }
    return {**msgspec.to_builtins(level), **summary([talk for answer in answers for talk in answer], level), "cpu": cpu, "stages": busy}


def summary(talks: list[Talk], level: Level) -> dict[str, Any]:
    """A unit is missed when it lags for longer than a unit, or was never answered."""
    counted = [[unit for unit in units(talk) if unit.number >= SKIPPED and unit.number < level.seconds] for talk in talks]
    all_units = [unit for each in counted for unit in each]
    lags = [unit.lag_ms for unit in all_units]
    missed = sum(not lag <= UNIT_MS for lag in lags) + sum(level.seconds - SKIPPED - len(each) for each in counted)
    late = [ms for talk in talks for ms in talk.late_ms]
    return {
        "units": len(all_units),
        "speaking": sum(unit.speaks for unit in all_units),
        "lag": _finite([unit.lag_ms for unit in all_units if unit.speaks]),
        "listening_lag": _finite([unit.lag_ms for unit in all_units if not unit.speaks]),
        "first": _finite([unit.first_ms for unit in all_units if unit.first_ms is not None]),
        "turn_first": _finite([unit.first_ms for unit in all_units if unit.first_ms is not None and unit.opens]),
        "missed": missed,
        "expected": len(talks) * (level.seconds - SKIPPED),
        "holes": [unit.hole_ms for unit in all_units if unit.hole_ms > 0],
        "late_sends": sum(ms > LATE_SEND_MS for ms in late),
        "worst_send_ms": max(late, default=0.0),
        "growth_ms": _growth(counted),
        "cancelled": [ms for talk in talks for ms in talk.cancelled],
        "errors": [message for talk in talks for message in talk.errors][:20],
    }


def row(found: Mapping[str, Any]) -> list[object]:
    """Cells of HEADER."""
    lag, first = found["lag"], found["turn_first"]
    holes, speaking = len(found["holes"]), max(1, found["speaking"])
    void = f" VOID: {found['late_sends']} late sends" if found["late_sends"] else ""
    cpu = ", ".join(f"{name} {share:.2f}" for name, share in found["cpu"].items())
    stages = found.get("stages", {})
    steps = ", ".join(f"{name} {each['busy']:.0%} in {each['steps']:.0f} of {each['slots']:.1f}" for name, each in stages.items())
    return [
        found["sessions"],
        found["phases"],
        f"{found['video']:.0%}",
        found["units"],
        *(report.percentile(lag, q) for q in (50, 95, 99)),
        max(lag, default=float("nan")),
        *(report.percentile(first, q) for q in (50, 95)),
        f"{found['missed']} of {found['expected']}",
        f"{holes} ({holes / speaking:.2%})",
        found["growth_ms"],
        f"{len(found['errors'])}{void}",
        report.percentile(found["cancelled"], 95),
        steps,
        cpu,
        found.get("start_s", float("nan")),
    ]


HEADER = [
    "sessions",
    "phases",
    "video",
    "units",
    "lag p50",
    "p95",
    "p99",
    "max",
    "first sound of a turn p50",
    "its p95",
    "missed",
    "holes",
    "lag grew by",
    "errors",
    "cancel to last stale sound p95",
    "engines busy, in steps a second of so many sessions",
    "CPU s a second",
    "ready after s",
]


def _orders(level: Level, addresses: list[str], begins: float, picture: bytes) -> list[Order]:
    orders = []
    framed = round(level.sessions * level.video)
    for first in range(min(level.clients, level.sessions)):
        rows = range(first, level.sessions, level.clients)
        orders.append(
            Order(
                urls=[f"ws://{addresses[row % len(addresses)]}/v1/realtime?parley=1" for row in rows],
                begins=begins,
                offsets=[row / level.sessions if level.phases == "spread" else 0.0 for row in rows],
                units=level.seconds,
                frames=[row < framed for row in rows],
                picture=picture,
                cancels=level.cancels,
            )
        )
    return orders


async def obeyed(module: str, order: msgspec.Struct, answer: type[T]) -> T:
    """What clients in a process of their own found: the module reads one line of JSON and answers with one."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", module, cwd=ROOT, stdin=pipe, stdout=pipe, limit=1 << 30)
    try:
        said, _ = await process.communicate(msgspec.json.encode(order) + b"\n")
        return msgspec.json.decode(said, type=answer)
    finally:
        if process.returncode is None:
            process.kill()


def _growth(counted: list[list[Unit]]) -> float:
    """ms by which the median lag of the last third of the run is above the first's."""
    order = sorted((unit.number, unit.lag_ms) for each in counted for unit in each if unit.speaks and math.isfinite(unit.lag_ms))
    third = len(order) // 3
    if not third:
        return float("nan")
    return report.percentile([lag for _, lag in order[-third:]], 50) - report.percentile([lag for _, lag in order[:third]], 50)


def _finite(values: list[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _steps(address: str) -> tuple[float, float, float]:
    """Of a service so far: seconds in steps, steps, and sessions in all of them."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    names = ("parley_stage_step_seconds_sum", "parley_stage_step_seconds_count", "parley_stage_batch_slots_sum")
    seconds, count, slots = (sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name)) for name in names)
    return seconds, count, slots


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process so far, with those of children that it waited for; 0 once it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return sum(int(fields[at]) for at in (11, 12, 13, 14)) / _TICKS
