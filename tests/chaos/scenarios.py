"""All that chaos does to a house: how often in a whole run, and how often in a short one."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from tests.chaos import gateways, races, stages, stores
from tests.chaos.ledger import Tally
from tests.chaos.world import World


class Scenario(msgspec.Struct, frozen=True):
    name: str
    what: str
    run: Callable[[World, int], Awaitable[Tally]]
    whole: int
    short: int


SCENARIOS = (
    Scenario("gateway-kills", "SIGKILL of a gateway at a random moment", gateways.kills, 50, 4),
    Scenario("crash-points", "every named crash point of the gateway", gateways.crash_points, 5, 1),
    Scenario("stage-kills", "SIGKILL of a replica of each stage", stages.kills, 20, 1),
    Scenario("freezes", "SIGSTOP of each stage, found by its pulse", stages.freezes, 3, 1),
    Scenario("sleepers", "SIGCONT of a gateway after its sessions were taken over", gateways.sleepers, 6, 1),
    Scenario("outages", "the store silent for 1 to 5 s", stores.outages, 10, 1),
    Scenario("wipes", "the store empty after a restart", stores.wipes, 3, 1),
    Scenario("doubles", "a gateway killed while the store is silent", stores.doubles, 5, 1),
    Scenario("races", "two or three takeovers at once", races.takeovers, 20, 2),
    Scenario("drains", "SIGTERM of a gateway under load", gateways.drains, 20, 2),
)


async def strike(world: World, scenario: Scenario, *, short: bool) -> Tally:
    """Runs one scenario and prints its line; a failure with what was wrong, and how to see it again."""
    rounds = scenario.short if short else scenario.whole
    started = time.monotonic()
    tally = await scenario.run(world, rounds)
    verdict = "ok" if tally.clean else "FAILED"
    world.say(f"{scenario.name}: {scenario.what}, {rounds} times, {time.monotonic() - started:.0f} s, {verdict}: {tally.line()}")
    if not tally.clean:
        for problem in tally.problems:
            world.say(f"  {problem}")
        world.say(f"  again: SEED={world.seed} ONLY={scenario.name}{' SHORT=1' if short else ''} make chaos; logs: {world.house.folder}")
    return tally


def house(folder: Path, seed: int, say: Callable[[str], None] = print) -> World:
    """A world whose house has started."""
    world = World(folder, seed, say)
    world.house.start()
    return world
