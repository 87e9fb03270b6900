"""Gateways that die: at named points, and at random moments; that are told to end; that sleep and wake too late."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import time

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage

from tests.chaos.client import ChaosClient, Event
from tests.chaos.ledger import Tally
from tests.chaos.speaker import Speaker
from tests.chaos.world import ROLES, Crowd, World, at_length, calling, crowd, replied_to, unruly
from tests.support.load import stretched

SPEAKING = {
    "before_commit": (8, 150),
    "after_commit": (8, 150),
    "after_send": (15, 200),
    "after_stage_send": (2, 9),
    "before_ack": (8, 150),
}
"""Points that a gateway passes while it converses, and how often it may pass them before it dies: a few seconds of three conversations."""
TAKING = ("after_cas", "after_attach")
"""Points that it passes when it takes a session over."""
CRASH_WITHIN_S = 40.0
CLOSED_WITHIN_S = 1.0


async def kills(world: World, rounds: int) -> Tally:
    """SIGKILL of a gateway at a random moment; its conversations go on at the other one, and one whose client never comes is reaped."""
    tally = Tally()
    for first in range(0, rounds, 10):
        rng = world.rng("gateway kills", first)
        async with crowd(world, rng) as talk:
            for role in ROLES:
                await talk.join(role)
            await talk.went_on()
            for _ in range(first, min(first + 10, rounds)):
                number = world.holder(rng.choice(talk.speakers).client)
                await asyncio.sleep(rng.uniform(0, 1.5))
                await _kill_while_some_open(world, number, rng)
                await asyncio.gather(world.restart_gateway(number), talk.went_on())
            await _leave_one_behind(world, talk, rng)
            tally.add(await talk.end())
    return tally


async def _kill_while_some_open(world: World, number: int, rng: random.Random) -> None:
    """Two more are being admitted when it dies; they do not come back, and the audit at the end finds nothing of them, either."""
    url = world.url(number)
    knocking = [asyncio.create_task(_knock(url)) for _ in range(2)]
    await asyncio.sleep(rng.uniform(0, 0.05))
    await world.kill_gateway(number)
    await asyncio.gather(*knocking)


async def _knock(url: str) -> None:
    with contextlib.suppress(OSError, InvalidHandshake, InvalidMessage, ConnectionClosed, TimeoutError):
        async with connect(url, max_size=None, compression=None) as socket:
            await socket.wait_closed()


async def _leave_one_behind(world: World, talk: Crowd, rng: random.Random) -> None:
    """A client that vanishes with its gateway and never comes back: the audit at the end finds nothing of it."""
    speaker = await talk.join(replied_to)
    await talk.went_on([speaker])
    number = world.holder(speaker.client)
    await asyncio.gather(talk.vanish(speaker), world.kill_gateway(number))
    await world.restart_gateway(number)


# named points


async def crash_points(world: World, rounds: int) -> Tally:
    """Each named point: the gateway dies there while replies are spoken and while users speak."""
    tally = Tally()
    for nth in range(rounds):
        rng = world.rng("crash points", nth)
        async with crowd(world, rng) as talk:
            for role in ROLES:
                await talk.join(role)
            await talk.went_on()
            for point, (least, most) in SPEAKING.items():
                # a short run has no time for late ones
                passes = rng.randint(least, most if rounds > 1 else least + (most - least) // 3)
                await _crash_while_speaking(world, talk, f"{point}:{passes}")
            for point in TAKING:
                await _crash_while_taking(world, talk, rng, point)
            await _crash_at_drain(world, talk, rng)
            tally.add(await talk.end())
    return tally


async def _crash_while_speaking(world: World, talk: Crowd, point: str) -> None:
    """All conversations move to a gateway that will die; then they move again."""
    await _rearm(world, talk, 1, point)
    await _kill_and_restart(world, talk, 2)
    armed = world.house.gateways[0]
    if not await world.died(armed, CRASH_WITHIN_S):
        talk.tally.problems.append(f"the gateway never passed {point}")
        await world.kill_gateway(1)
    await talk.went_on()


async def _crash_while_taking(world: World, talk: Crowd, rng: random.Random, point: str) -> None:
    """The gateway that takes over dies in the takeover; the client asks again."""
    await _rearm(world, talk, 1, point)
    await world.kill_gateway(2)
    if not await world.died(world.house.gateways[0], CRASH_WITHIN_S):
        talk.tally.problems.append(f"the gateway never passed {point}")
        await world.kill_gateway(1)
    await world.restart_gateway(2)
    await talk.went_on()


async def _crash_at_drain(world: World, talk: Crowd, rng: random.Random) -> None:
    await _rearm(world, talk, 1, "drain")
    await _kill_and_restart(world, talk, 2)
    await asyncio.sleep(rng.uniform(0, 1.0))
    world.house.gateways[0].signal(signal.SIGTERM)
    if not await world.died(world.house.gateways[0], CRASH_WITHIN_S):
        talk.tally.problems.append("the gateway never passed drain")
    await asyncio.gather(world.restart_gateway(1), talk.went_on())


async def _rearm(world: World, talk: Crowd, number: int, point: str) -> None:
    """A new gateway with a crash point; nobody is on it yet, for the other one has them all."""
    await world.kill_gateway(number)
    await talk.settled()
    await world.restart_gateway(number, PARLEY_CRASH_AT=point)


async def _kill_and_restart(world: World, talk: Crowd, number: int) -> None:
    await world.kill_gateway(number)
    await world.restart_gateway(number)


# planned restarts


async def drains(world: World, rounds: int) -> Tally:
    """SIGTERM of a gateway under load: no reply is cut, no session is lost."""
    tally = Tally()
    for first in range(0, rounds, 10):
        rng = world.rng("drains", first)
        async with crowd(world, rng) as talk:
            for role in (replied_to, calling, unruly):
                await talk.join(role)
            await talk.went_on()
            for _ in range(first, min(first + 10, rounds)):
                await _drain(world, talk, rng)
            tally.add(await talk.end())
    return tally


async def _drain(world: World, talk: Crowd, rng: random.Random) -> None:
    number = world.holder(rng.choice(talk.speakers).client)
    gateway = world.house.gateways[number - 1]
    await asyncio.sleep(rng.uniform(0, 1.5))
    gateway.signal(signal.SIGTERM)
    if not await world.died(gateway, 20.0) or gateway.process.returncode != 0:
        talk.tally.problems.append(f"a drain ended with {gateway.process.returncode}")
        await world.kill_gateway(number)
    await asyncio.gather(world.restart_gateway(number), talk.went_on())


# gateways that wake too late


async def sleepers(world: World, rounds: int) -> Tally:
    """SIGSTOP of a gateway in mid-sentence, a takeover by the other one, then SIGCONT: it may say no more than it had committed."""
    tally = Tally()
    for nth in range(rounds):
        rng = world.rng("sleepers", nth)
        async with crowd(world, rng) as talk:
            speaker = await talk.join(at_length)
            await talk.went_on()
            await speaker.client.until(speaker.is_replied_to)
            await asyncio.sleep(rng.uniform(0, 1.5))
            await _sleep(world, talk, speaker, rng)
            tally.add(await talk.end())
    return tally


async def _sleep(world: World, talk: Crowd, speaker: Speaker, rng: random.Random) -> None:
    client = speaker.client
    gateway = world.house.gateways[world.holder(client) - 1]
    url = client.url
    gateway.signal(signal.SIGSTOP)
    world.avoid.add(url)
    try:
        before = client.last_seq
        old = await client.let_go()
        client.dial()
        await client.connected()
        await talk.went_on([speaker])
        await asyncio.sleep(rng.uniform(0, 1.0))
    finally:
        gateway.signal(signal.SIGCONT)
    said, seconds, code = await _last_words(old)
    world.avoid.discard(url)
    talk.tally.problems += _beyond(client, before, said)
    if seconds > stretched(CLOSED_WITHIN_S) or code != 1008:
        talk.tally.problems.append(f"{client.name}: the socket of a gateway that woke was closed after {seconds:.2f} s with {code}")
    await talk.went_on([speaker])


async def _last_words(socket: ClientConnection) -> tuple[list[Event], float, int]:
    """What an old socket still carries, how long it stays open, and the code it closes with."""
    said, woken = [], time.monotonic()
    try:
        async with asyncio.timeout(10):
            while True:
                said.append(json.loads(await socket.recv()))
    except ConnectionClosed as closed:
        return said, time.monotonic() - woken, closed.rcvd.code if closed.rcvd else 1006
    except TimeoutError:
        await socket.close()
        return said, time.monotonic() - woken, 0


def _beyond(client: ChaosClient, before: int, said: list[Event]) -> list[str]:
    """Anything but the word that it was replaced, and what it had committed: the very events that the journal replayed elsewhere."""
    known = {event["event_id"]: event for event in client.events}
    problems = []
    for event in said:
        if event["type"] in ("session.replaced", "session.skipped"):
            continue
        same = known.get(event["event_id"])
        if same is None or {**same, "event_id": ""} != {**event, "event_id": ""}:
            problems.append(f"{client.name}: a gateway that lost the session said {event['type']} {event['event_id']} after {before}")
    return problems
