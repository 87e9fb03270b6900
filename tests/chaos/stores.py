"""A store that is away, or has forgotten everything."""

from __future__ import annotations

import asyncio

from tests.chaos.ledger import Allowed, Tally
from tests.chaos.world import ROLES, Crowd, World, crowd, replied_to

TWO_AT_ONCE = Allowed(
    failures=("stage_lost", "stage_failed", "stage_timeout", "rolled_back"), refusals=("response_already_active",), resyncs=True
)
DURABLE_WITHIN_S = 10.0


async def outages(world: World, rounds: int) -> Tally:
    """The store does not answer for one to five seconds while replies are spoken; after it every conversation can be resumed again."""
    tally = Tally()
    for first in range(0, rounds, 5):
        rng = world.rng("outages", first)
        async with crowd(world, rng) as talk:
            for role in ROLES:
                await talk.join(role)
            await talk.went_on()
            for _ in range(first, min(first + 5, rounds)):
                await asyncio.sleep(rng.uniform(0, 1.0))
                await _pause(world, rng.uniform(1, 5))
                await _go_on(talk)
            tally.add(await talk.end())
    return tally


async def wipes(world: World, rounds: int) -> Tally:
    """The store comes back with nothing: no conversation ends, and every one can be resumed again."""
    tally = Tally()
    for nth in range(rounds):
        rng = world.rng("wipes", nth)
        async with crowd(world, rng) as talk:
            for role in ROLES:
                await talk.join(role)
            await talk.went_on()
            await asyncio.sleep(rng.uniform(0, 1.0))
            await asyncio.to_thread(world.house.valkey.kill)
            await asyncio.sleep(rng.uniform(0, 1.0))
            await asyncio.to_thread(world.house.valkey.start)
            await asyncio.to_thread(world.house.wait_registered)
            await _go_on(talk)
            tally.add(await talk.end())
    return tally


async def doubles(world: World, rounds: int) -> Tally:
    """A gateway killed while the store is away, two failures: a typed resync, perhaps a failed response, and the conversation goes on."""
    tally = Tally()
    for nth in range(rounds):
        rng = world.rng("doubles", nth)
        async with crowd(world, rng) as talk:
            for _ in range(3):
                await talk.join(replied_to)
            await talk.went_on()
            await asyncio.sleep(rng.uniform(0, 1.0))
            world.house.valkey.pause()
            try:
                await asyncio.sleep(rng.uniform(0.6, 3))
                number = world.holder(rng.choice(talk.speakers).client)
                await world.kill_gateway(number)
                await asyncio.sleep(rng.uniform(0, 1.0))
            finally:
                world.house.valkey.resume()
            await world.restart_gateway(number)
            await talk.went_on()
            await _go_on(talk)
            tally.add(await talk.end(TWO_AT_ONCE))
    return tally


async def _pause(world: World, seconds: float) -> None:
    world.house.valkey.pause()
    try:
        await asyncio.sleep(seconds)
    finally:
        world.house.valkey.resume()


async def _go_on(talk: Crowd) -> None:
    """Every conversation ends a turn, is durable again, and is resumed."""
    await talk.went_on()
    await talk.durable(DURABLE_WITHIN_S)
    for speaker in talk.speakers:
        speaker.client.drop()
    await talk.went_on()
