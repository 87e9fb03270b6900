"""Slots: reserve one on a replica of each stage, all or nothing; confirm; release; quarantine."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from session_store.errors import AtCapacity, ReservationLost, StagesUnavailable, StoreError, TenantLimit
from session_store.keys import check_id, check_stage
from session_store.placement import Placement
from session_store.pool import Pool
from session_store.settings import StoreSettings


class Reserved(msgspec.Struct, frozen=True):
    """A session's slots by stage. They expire unless confirmed."""

    placements: dict[str, Placement]


class Quarantined(msgspec.Struct, frozen=True):
    """A slot that stays taken because the stage did not confirm that it is free."""

    session_id: str
    stage: str
    replica_id: str
    age_ms: int


class Admission:
    """The plan of the deployment's slots. Every call raises StoreUnavailable when Redis does not answer in time."""

    def __init__(self, pool: Pool, settings: StoreSettings) -> None:
        self._pool = pool
        self._settings = settings
        self._leaving: set[asyncio.Future[None]] = set()

    async def reserve(
        self,
        session_id: str,
        tenant: str,
        stages: Sequence[str],
        tenant_limit: int = 0,
        *,
        api_key: str = "",
        api_key_limit: int = 0,
        avoid: Collection[str] = (),
        seed: int | None = None,
        wait_ms: int = 0,
        on_position: Callable[[int], None] | None = None,
    ) -> Reserved:
        """Takes a slot on the least loaded live replica of each stage that is not draining and has KV left.

        A repeat answers the same placements and takes nothing more. `tenant_limit` is the most sessions of the tenant (0: no limit),
        `api_key_limit` of those that were opened with the key of this id.
        Replicas in `avoid` are not chosen; a stage that the session has on one of them is placed anew and the old slot quarantined.
        Ties are broken by `seed` (random when None).

        Who finds no slot waits up to `wait_ms`, first come, first served among those who want the same stages; only those whose tenant
        or key has enough are passed over. `on_position` hears the place in the queue (from 1) again and again. Who does not wait goes after
        all who do, but a session that has slots already goes before them. Raises AtCapacity, StagesUnavailable (at once) or
        TenantLimit, and then nothing was taken. Cancelled, it takes nothing and waits no more: one caller a session.
        """
        wanted = [check_stage(stage) for stage in dict.fromkeys(stages)]
        if not wanted:
            raise ValueError("a session has at least one stage")
        names = msgspec.json.encode(wanted).decode()
        seed = random.getrandbits(31) if seed is None else seed
        key = (check_id(api_key) if api_key else "", api_key_limit)
        asked = (check_id(session_id), check_id(tenant), tenant_limit, seed, names, msgspec.json.encode(sorted(avoid)).decode())
        call = asyncio.ensure_future(self._pool.run("reserve", *asked, wait_ms, *key))
        try:
            while (answer := await asyncio.shield(call))[0] == b"wait":
                position, left_ms = int(answer[2]), int(answer[3])
                if on_position is not None:
                    on_position(position)
                await asyncio.sleep(self._pause_s(position, left_ms))
                call = asyncio.ensure_future(self._pool.run("reserve", *asked, 0, *key))
        except StoreError:
            raise
        except BaseException:
            await self._left(session_id, names, call)
            raise
        return self._reserved(answer)

    def _pause_s(self, position: int, left_ms: int) -> float:
        """Those at the front ask often, those behind them less, and nobody so seldom that it counts as gone."""
        pause_ms = self._settings.queue_poll_ms * random.uniform(1.0, 2.5) * (1 + position / 10)
        return min(pause_ms, self._settings.waiter_ttl_ms / 4, left_ms + 1) / 1000

    async def _left(self, session_id: str, names: str, call: asyncio.Future[Any]) -> None:
        cleanup = asyncio.ensure_future(self._abandon(session_id, names, call))
        self._leaving.add(cleanup)
        cleanup.add_done_callback(self._leaving.discard)
        await asyncio.shield(cleanup)

    async def _abandon(self, session_id: str, names: str, call: asyncio.Future[Any]) -> None:
        # The question may be on its way: it has to be answered first, or it would be asked after all.
        await asyncio.wait([call])
        with contextlib.suppress(StoreError):
            await self._pool.run("abandon", session_id, names)

    def _reserved(self, answer: Sequence[bytes]) -> Reserved:
        verdict, rest = answer[0], [value.decode() for value in answer[1:]]
        if verdict == b"tenant":
            raise TenantLimit(self._settings.tenant_retry_after_ms)
        if verdict == b"full":
            raise AtCapacity(self._settings.capacity_retry_after_ms, rest[0], int(rest[1]))
        if verdict == b"missing":
            raise StagesUnavailable(rest[0])
        return Reserved({rest[i]: Placement(rest[i + 1], rest[i + 2], int(rest[i + 3])) for i in range(0, len(rest), 4)})

    async def confirm(self, session_id: str) -> None:
        """Keeps the reserved slots for good. Idempotent. Raises ReservationLost: release the session and reserve again."""
        answer = await self._pool.run("confirm", check_id(session_id))
        if answer[0] == b"lost":
            raise ReservationLost(answer[1].decode())

    async def release(self, session_id: str, stages: Collection[str] | None = None) -> None:
        """Frees the session's slots, or only those of `stages`. Idempotent. To be called once the stages confirmed."""
        if stages is not None and not stages:
            return
        wanted = sorted(check_stage(stage) for stage in stages or ())
        await self._pool.run("release", check_id(session_id), msgspec.json.encode(wanted).decode())

    async def quarantine(self, session_id: str, stage: str) -> bool:
        """Keeps the slot taken until the replica's beat does not list the session any more. False when the session had none there."""
        return bool(await self._pool.run("quarantine", check_id(session_id), check_stage(stage)))

    async def quarantined(self) -> list[Quarantined]:
        """Every quarantined slot, the oldest first."""
        listed = []
        for member, age_ms in await self._pool.run("quarantine_list"):
            replica_id, stage, session_id = member.decode().split(" ")
            listed.append(Quarantined(session_id, stage, replica_id, int(age_ms)))
        return listed
