"""Stage replicas that die or stand still."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from pathlib import Path

from tests.chaos.ledger import HEARS, Allowed, Tally
from tests.chaos.speaker import Speaker
from tests.chaos.world import PULSE_MS, ROLES, Crowd, World, calling, crowd
from tests.support.house import STAGES
from tests.support.load import stretched

LOST = Allowed(failures=("stage_lost",))
NOTICE_MARGIN_S = 1.0
"""After the pulse's timeout."""


async def kills(world: World, rounds: int) -> Tally:
    """SIGKILL of a replica of each stage; its sessions live on at the other one."""
    tally = Tally()
    strikes = [stage for _ in range(rounds) for stage in STAGES]
    for first in range(0, len(strikes), 10):
        rng = world.rng("stage kills", first)
        async with crowd(world, rng) as talk:
            for role in ROLES:
                await talk.join(role)
            await talk.went_on()
            for stage in strikes[first : first + 10]:
                await _kill(world, talk, rng, stage)
            tally.add(await talk.end(LOST))
    return tally


async def _kill(world: World, talk: Crowd, rng: random.Random, stage: str) -> None:
    name = rng.choice((stage, f"{stage}-2"))
    await asyncio.sleep(rng.uniform(0, 1.5))
    await asyncio.to_thread(world.house.services[name].kill)
    await asyncio.gather(world.restart_service(name), talk.went_on())


async def freezes(world: World, rounds: int) -> Tally:
    """SIGSTOP of each stage while it works: found by its pulse, its sessions live on at the other replica; woken, it holds nothing."""
    tally = Tally()
    for nth in range(rounds):
        rng = world.rng("freezes", nth)
        async with crowd(world, rng) as talk:
            caller, listener = await talk.join(calling), await talk.join(slowly_replied_to)
            await talk.went_on()
            for stage in STAGES:
                await asyncio.sleep(rng.uniform(0, 0.5))
                await _freeze(world, talk, caller if stage in HEARS else listener, stage)
            tally.add(await talk.end(LOST))
    return tally


async def slowly_replied_to(speaker: Speaker, rng: random.Random) -> None:
    """A reply whose words come one by one, so that every stage behind it has work until its end."""
    await speaker.typed(6, words_per_s=3)


async def _freeze(world: World, talk: Crowd, speaker: Speaker, stage: str) -> None:
    replica = await world.replica_of(speaker.client.session_id, stage)
    holder = world.house.gateways[world.holder(speaker.client) - 1]
    before = holder.log.stat().st_size
    replica.signal(signal.SIGSTOP)
    stopped = time.monotonic()
    try:
        while replica.ready["grpc"] not in _pulses_lost(holder.log, before):
            if time.monotonic() - stopped > PULSE_MS / 1000 + stretched(NOTICE_MARGIN_S):
                talk.tally.problems.append(f"{replica.name} stood still for {time.monotonic() - stopped:.1f} s unnoticed")
                break
            await asyncio.sleep(0.02)
        await talk.went_on()
    finally:
        replica.signal(signal.SIGCONT)


def _pulses_lost(log: Path, start: int) -> set[str]:
    """Addresses of replicas that a gateway has given up, told in its log from there on."""
    with log.open("rb") as lines:
        lines.seek(start)
        told = [json.loads(line) for line in lines.read().splitlines() if line.startswith(b"{") and line.endswith(b"}")]
    return {each["address"] for each in told if each["event"] == "replica lost its pulse"}
