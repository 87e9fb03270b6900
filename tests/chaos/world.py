"""The house that chaos strikes, the conversations that go on in it, and the audit of what they leave behind."""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from session_store import Store, StoreSettings
from session_store.errors import SessionMissing
from tests.chaos.client import ChaosClient, SessionOver
from tests.chaos.ledger import NOTHING, Allowed, Tally, judge
from tests.chaos.speaker import Speaker
from tests.support.house import STAGES, House
from tests.support.process import Child

LEASE_MS, GRACE_MS, REAP_S = 2500, 5000, 0.3
PULSE_MS = 2500
SETTINGS = {
    "PARLEY_LEASE_TTL_MS": str(LEASE_MS),
    "PARLEY_GATEWAY_TTL_MS": str(LEASE_MS),
    "PARLEY_GRACE_MS": str(GRACE_MS),
    "PARLEY_REAP_INTERVAL_S": str(REAP_S),
    "PARLEY_STALE_SLOT_MS": str(LEASE_MS + GRACE_MS + 1000),
    "PARLEY_CLOSING_MS": "3000",
    "PARLEY_RESERVATION_TTL_MS": "3000",
    "PARLEY_SILENCE_MS": "3000",
    "PARLEY_DETACHED_TTL_S": "3",
    "PARLEY_DETACHED_RECHECK_S": "1",
    "PARLEY_DRAIN_TIMEOUT_MS": "4000",
    "PARLEY_REPLICA_TTL_MS": "6000",
    # long enough that a test machine which stalls for a moment does not add a loss of its own
    "PARLEY_PULSE_TIMEOUT_MS": str(PULSE_MS),
    "PARLEY_REDIS_TIMEOUT_MS": "450",
    "PARLEY_ATTACH_TIMEOUT_MS": "5000",
    "PARLEY_OPEN_TIMEOUT_MS": "15000",
    "PARLEY_UPDATE_TIMEOUT_MS": "10000",
    "PARLEY_STALL_TIMEOUT_MS": "20000",
}
"""Bounds of the deployment, short enough to be waited for."""
FREE_WITHIN_S = (LEASE_MS + GRACE_MS) / 1000 + 10
TURN_WITHIN_S = 40.0


class World:
    """`seed` decides all that is random; `say` prints a line."""

    def __init__(self, folder: Path, seed: int, say: Callable[[str], None] = print) -> None:
        self.seed, self.say = seed, say
        self.house = House(
            folder,
            gateways=2,
            replicas=2,
            services=STAGES,
            gateway=SETTINGS,
            service_env=dict.fromkeys(STAGES, SETTINGS),
        )
        self.avoid: set[str] = set()
        """Gateways that nobody dials for now."""
        self._names = 0

    def rng(self, *names: object) -> random.Random:
        return random.Random(f"{self.seed}/{'/'.join(map(str, names))}")

    def urls(self) -> list[str]:
        return [url for url in self.house.realtimes if url not in self.avoid]

    def name(self) -> str:
        self._names += 1
        return f"c{self._names}"

    async def client(self, rng: random.Random, url: str | None = None) -> ChaosClient:
        """A new conversation. After a change in the house a gateway may need a moment to admit it."""
        return await ChaosClient(self.name(), self.urls, random.Random(rng.random())).start(url)

    # processes

    async def kill_gateway(self, number: int) -> None:
        await asyncio.to_thread(self.house.gateways[number - 1].kill)

    async def restart_gateway(self, number: int, **env: str) -> None:
        await asyncio.to_thread(self.house.restart_gateway, number, **env)

    async def restart_service(self, name: str) -> None:
        await asyncio.to_thread(self.house.restart_service, name)

    def holder(self, client: ChaosClient) -> int:
        """Number of the gateway that has this client's session."""
        return 1 + [self.url(number + 1) for number in range(len(self.house.gateways))].index(client.url)

    def url(self, number: int) -> str:
        gateway = self.house.gateways[number - 1]
        return f"ws://{gateway.ready['http']}/v1/realtime" if gateway.ready else ""

    async def replica_of(self, session_id: str, stage: str) -> Child:
        """The process that holds this session's stage. Raises LookupError."""
        for name in (stage, f"{stage}-2"):
            if (stage, session_id) in await self.house.held(name):
                return self.house.services[name]
        raise LookupError(f"nobody holds {stage} of {session_id}")

    async def died(self, child: Child, within_s: float) -> bool:
        """True when it ended by itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(child.wait, within_s)
        return child.process.poll() is not None

    # audit

    async def audit(self, session_ids: list[str]) -> Tally:
        """Within the bound nothing is held, no slot is taken, and every one of these sessions is over."""
        tally, deadline = Tally(), time.monotonic() + FREE_WITHIN_S
        while True:
            held, used = await self.house.held(), sum((await self.house.used()).values())
            stuck = await self._not_over(session_ids)
            if not held and not used and not stuck:
                return tally
            if time.monotonic() > deadline:
                tally.leaked, tally.stuck = max(used, len(held)), len(stuck)
                tally.problems.append(f"not freed within {FREE_WITHIN_S} s: held {held}, slots taken {used}, records {stuck}")
                return tally
            await asyncio.sleep(0.1)

    async def _not_over(self, session_ids: list[str]) -> list[tuple[str, str]]:
        alive = []
        async with await Store.open(self.house.valkey.url, StoreSettings(redis_timeout_ms=5000)) as store:
            for session_id in session_ids:
                try:
                    state = (await store.records.load(session_id)).record.state
                except SessionMissing:
                    continue
                if state != "closed":
                    alive.append((session_id, state))
        return alive


class Crowd:
    """Conversations that go on, turn after turn, until they are told to end."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world, self._rng = world, rng
        self.speakers: list[Speaker] = []
        self.tally = Tally()
        self._ending = False
        self._gone: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def join(self, role: Callable[[Speaker, random.Random], Awaitable[object]]) -> Speaker:
        """One more conversation, whose every turn is what `role` does."""
        client = await self.world.client(self._rng)
        speaker = Speaker(client, random.Random(self._rng.random()))
        self.speakers.append(speaker)
        self._tasks.append(asyncio.create_task(self._converse(speaker, role, random.Random(self._rng.random())), name=client.name))
        return speaker

    async def _converse(self, speaker: Speaker, role: Callable[[Speaker, random.Random], Awaitable[object]], rng: random.Random) -> None:
        try:
            await speaker.configure()
            while not self._ending:
                async with asyncio.timeout(TURN_WITHIN_S):
                    await role(speaker, rng)
            async with asyncio.timeout(TURN_WITHIN_S):
                await speaker.typed()
                await speaker.recite()
        except TimeoutError:
            self.tally.stuck += 1
            last = [event["type"] for event in speaker.client.events[-6:]]
            self.tally.problems.append(f"{speaker.client.name}: a turn did not end within {TURN_WITHIN_S:.0f} s; heard last {last}")
        except SessionOver as over:
            self.tally.stuck += 1
            self.tally.problems.append(f"lost: {over}")

    async def vanish(self, speaker: Speaker) -> None:
        """This one is gone, without a word and for good; what it leaves is audited, what it heard is not judged."""
        task = self._tasks.pop(self.speakers.index(speaker))
        self.speakers.remove(speaker)
        self._gone.append(speaker.client.session_id)
        task.cancel()
        await asyncio.gather(task, speaker.client.vanish(), return_exceptions=True)

    async def settled(self) -> None:
        """Until every conversation has a connection."""
        for speaker in self.speakers:
            with contextlib.suppress(SessionOver):
                await speaker.client.connected()

    async def went_on(self, speakers: list[Speaker] | None = None) -> None:
        """Until each has ended a turn from now on, or its conversation is over."""
        await asyncio.gather(*(self._went_on(speaker) for speaker in speakers or self.speakers))

    async def _went_on(self, speaker: Speaker) -> None:
        turned = asyncio.create_task(speaker.turned())
        await asyncio.wait({turned, self._tasks[self.speakers.index(speaker)]}, return_when=asyncio.FIRST_COMPLETED)
        turned.cancel()

    async def durable(self, within_s: float) -> None:
        """Until what each client heard last has a number. Notes a problem if that takes longer."""
        deadline = time.monotonic() + within_s
        for client in (speaker.client for speaker in self.speakers):
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    await client.until(lambda client=client: client.durable)  # type: ignore[misc]
            except TimeoutError:
                self.tally.problems.append(f"{client.name}: not durable again within {within_s:.0f} s")
            except SessionOver:
                continue  # its own turn tells

    async def end(self, allowed: Allowed = NOTHING) -> Tally:
        """Each ends its turn, has one more, and tells what its model knows. Then all is judged, and the house audited when they left."""
        self._ending = True
        await asyncio.gather(*self._tasks)
        for speaker in self.speakers:
            self.tally.add(await judge(speaker, self.world.house.accounts, allowed))
        await asyncio.gather(*(speaker.client.leave() for speaker in self.speakers))
        self.tally.add(await self.world.audit([speaker.client.session_id for speaker in self.speakers] + self._gone))
        return self.tally

    async def abandon(self) -> None:
        """Stop at once, after a failure of the test itself."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(speaker.client.vanish() for speaker in self.speakers), return_exceptions=True)


@asynccontextmanager
async def crowd(world: World, rng: random.Random) -> AsyncIterator[Crowd]:
    made = Crowd(world, rng)
    try:
        yield made
    finally:
        await made.abandon()


# roles


async def replied_to(speaker: Speaker, rng: random.Random) -> None:
    await speaker.typed(rng.randint(2, 6))


async def at_length(speaker: Speaker, rng: random.Random) -> None:
    await speaker.typed(8)


async def calling(speaker: Speaker, rng: random.Random) -> None:
    await speaker.spoken()


async def unruly(speaker: Speaker, rng: random.Random) -> None:
    await rng.choice((speaker.interrupted, speaker.spoken, speaker.typed))()


ROLES = (replied_to, calling, unruly)
