"""Several that want one session at the same moment."""

from __future__ import annotations

import asyncio
import json
import random

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.chaos.ledger import Tally
from tests.chaos.speaker import Speaker
from tests.chaos.world import ROLES, Crowd, World, crowd

SETTLED_S = 2.0
"""Every loser has been told by then."""


async def takeovers(world: World, rounds: int) -> Tally:
    """Two or three resumes with the same token at once, over both gateways: one winner, and the conversation goes on."""
    tally = Tally()
    for first in range(0, rounds, 10):
        rng = world.rng("takeover races", first)
        async with crowd(world, rng) as talk:
            for role in ROLES:
                await talk.join(role)
            await talk.went_on()
            for nth in range(first, min(first + 10, rounds)):
                await _race(world, talk, talk.speakers[nth % len(talk.speakers)], rng)
            tally.add(await talk.end())
    return tally


async def _race(world: World, talk: Crowd, speaker: Speaker, rng: random.Random) -> None:
    client = speaker.client
    await asyncio.sleep(rng.uniform(0, 1.0))
    old = await client.let_go()
    if rng.random() < 0.5:
        old.transport.abort()
    urls = world.urls()
    sockets = [await connect(rng.choice(urls) + "?parley=1&resume=1", max_size=None, compression=None) for _ in range(rng.randint(2, 3))]
    try:
        outcomes = await asyncio.gather(*(_ask(socket, client.resume_message) for socket in sockets))
        if [outcome for outcome in outcomes if outcome == "won"] != ["won"] or not {*outcomes} <= {"won", "refused", "replaced"}:
            talk.tally.problems.append(f"{client.name}: a race of {len(sockets)} ended with {outcomes}")
        client.dial()
        await talk.went_on([speaker])
        left = [socket for socket in (*sockets, old) if not await _closed(socket)]
        if left:
            talk.tally.problems.append(f"{client.name}: {len(left)} connections outlived a takeover")
    finally:
        await asyncio.gather(*(socket.close() for socket in (*sockets, old)))


async def _ask(socket: ClientConnection, message: str) -> str:
    """What became of one resume: "won" when it still has the session after a while."""
    replaced = False
    try:
        await socket.send(message)
        async with asyncio.timeout(SETTLED_S):
            first = json.loads(await socket.recv())
            if first["type"] == "error":
                return "refused" if first["error"]["code"] == "session_resume_conflict" else str(first["error"]["code"])
            replaced = first["type"] == "session.replaced"
            while True:
                replaced |= json.loads(await socket.recv())["type"] == "session.replaced"
    except TimeoutError:
        return "won"
    except ConnectionClosed as closed:
        return "replaced" if replaced and closed.rcvd is not None and closed.rcvd.code == 1008 else f"closed {closed.rcvd}"


async def _closed(socket: ClientConnection) -> bool:
    try:
        async with asyncio.timeout(SETTLED_S):
            while True:
                await socket.recv()
    except ConnectionClosed:
        return True
    except TimeoutError:
        return False
