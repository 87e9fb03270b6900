"""Sessions of a soak run: their processes, what is done to them meanwhile, and what is measured."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from pathlib import Path
from typing import Any, get_args

import msgspec
import torch

from benchmarks.native.deployment import STAGES, Deployed
from benchmarks.native.load import LEAD_S, obeyed
from benchmarks.native.soak_client import Order, Soaked
from benchmarks.native.soak_faults import Faults, Kind
from benchmarks.native.soak_faults import Order as FaultOrder

SAMPLES = 36
"""Of memory, at least, in a run."""
FIRST_FAULT_S, LAST_FAULT_S = 15.0, 20.0
"""No failure is ordered sooner after the beginning, or later before the end."""


class Memory(msgspec.Struct):
    """One look: MB of each process that are in memory, and of the card that are taken."""

    at: float
    resident: dict[str, float]
    card: float | None = None


class Fault(msgspec.Struct):
    """One failure: `at` when it happened, None if it did not."""

    stage: str
    kind: str
    session: str
    ordered: float
    at: float | None = None


class Kill(msgspec.Struct):
    """One kill. `alive`: no other process ended with it."""

    stage: str
    at: float
    ready_s: float = float("nan")
    starts: int = 1
    """How often it was started until it was ready."""
    alive: bool = False


class Phase(msgspec.Struct):
    """What sessions there were, and what became of them."""

    sessions: int
    seconds: int
    begins: float
    talks: list[Soaked] = []
    memory: list[Memory] = []
    faults: list[Fault] = []
    kills: list[Kill] = []


class Load:
    """`folder`: for sounds; `orders`: where the services look for failures."""

    def __init__(self, there: Deployed, folder: Path, orders: Path, *, on_card: bool) -> None:
        self._there, self._folder, self._faults, self._on_card = there, folder, Faults(orders), on_card

    async def run(
        self, sessions: int, seconds: int, *, processes: int = 8, faults_s: float = 0.0, kinds: tuple[str, ...] = (), kill: str = ""
    ) -> Phase:
        """`sessions` clients of so many units. A failure every `faults_s` (0: none); `kill`: the stage that is killed after a quarter."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        phase = Phase(sessions, seconds, time.monotonic() + LEAD_S + sessions / 40)
        beside = [asyncio.create_task(self._watch(phase))]
        if faults_s:
            beside.append(asyncio.create_task(self._fail(phase, faults_s, kinds or get_args(Kind))))
        killing = asyncio.create_task(self._kill(phase, kill)) if kill else None
        try:
            orders = self._orders(phase, processes)
            answers = await asyncio.gather(*(obeyed("benchmarks.native.soak_client", order, list[Soaked]) for order in orders))
            if killing is not None:
                await killing
        finally:
            for task in (*beside, *([killing] if killing is not None else [])):
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
        phase.talks = [talk for answer in answers for talk in answer]
        return phase

    def _orders(self, phase: Phase, processes: int) -> list[Order]:
        """Units end evenly spread over a second."""
        addresses, count = self._there.addresses, phase.sessions
        groups = [range(first, count, processes) for first in range(min(processes, count))]
        return [
            Order(
                names=[str(row) for row in rows],
                urls=[f"ws://{addresses[row % len(addresses)]}/v1/realtime?parley=1" for row in rows],
                begins=phase.begins,
                offsets=[row / count for row in rows],
                units=phase.seconds,
                folder=str(self._folder),
            )
            for rows in groups
        ]

    async def _watch(self, phase: Phase) -> None:
        every = min(10.0, phase.seconds / SAMPLES)
        await asyncio.sleep(max(0.0, phase.begins - time.monotonic()))
        while True:
            pids = {**self._there.pids, "store": self._there.store}
            card = await asyncio.to_thread(card_mb) if self._on_card else None
            phase.memory.append(Memory(time.monotonic(), {name: resident_mb(pid) for name, pid in pids.items()}, card))
            await asyncio.sleep(every)

    async def _fail(self, phase: Phase, every_s: float, kinds: tuple[str, ...]) -> None:
        """Stages in turn, kinds in turn, each time another session, as long as there are some."""
        draw, met = random.Random(45), set[str]()
        await asyncio.sleep(max(0.0, phase.begins + FIRST_FAULT_S - time.monotonic()))
        for number in range(1 << 30):
            if time.monotonic() > phase.begins + phase.seconds - LAST_FAULT_S:
                return
            whole = {file.read_text() for file in self._folder.glob("*.session")} - met
            if len(whole) < 2:
                return  # somebody has to show that the others are not harmed
            chosen = draw.choice(sorted(whole))
            met.add(chosen)
            stage, kind = STAGES[number % len(STAGES)], kinds[number // len(STAGES) % len(kinds)]
            fault = Fault(stage, kind, chosen, time.monotonic())
            phase.faults.append(fault)
            self._faults.order(stage, msgspec.convert({"session": chosen, "kind": kind}, FaultOrder))
            while time.monotonic() < fault.ordered + every_s:
                await asyncio.sleep(0.1)
                fault.at = fault.at or self._faults.done(stage)

    async def _kill(self, phase: Phase, stage: str) -> None:
        await asyncio.sleep(max(0.0, phase.begins + phase.seconds / 4 - time.monotonic()))
        others = {name: pid for name, pid in self._there.pids.items() if name != stage}
        kill = Kill(stage, time.monotonic())
        phase.kills.append(kill)
        kill.ready_s, kill.starts = await self._there.revive(stage)
        kill.alive = not self._there.dead and others.items() <= self._there.pids.items()


def resident_mb(pid: int) -> float:
    """Of a process; NaN once it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return float("nan")
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:")), float("nan"))


def card_mb() -> float:
    """Taken of the first card, by whomever."""
    free, total = torch.cuda.mem_get_info(0)
    return (total - free) / 2**20


def raw(phase: Phase) -> dict[str, Any]:
    """All of it but when each packet left, and when each piece of sound came."""
    told: dict[str, Any] = msgspec.to_builtins(phase)
    told["talks"] = [{key: value for key, value in talk.items() if key not in ("sent", "late_ms", "sound")} for talk in told["talks"]]
    return told
