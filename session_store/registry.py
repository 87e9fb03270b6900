"""Who is there: replicas with their stages, and gateways. A beat keeps each alive by Redis' clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from session_store.connection import Call, Connection
from session_store.keys import check_id, check_stage, session_keys
from session_store.placement import decode_placements
from session_store.pool import Pool
from session_store.settings import StoreSettings


class StageOffer(msgspec.Struct, frozen=True):
    """One stage of a replica: most sessions, KV bytes in all and for one session (0: none), and the sessions that it holds now."""

    stage: str
    slots: int
    kv_bytes: int = 0
    kv_per_session: int = 0
    model: str = ""
    held: tuple[str, ...] = ()


class ReplicaBeat(msgspec.Struct, frozen=True):
    """What a replica says of itself at each beat. `address` is its gRPC target."""

    replica_id: str
    service: str
    address: str
    stages: tuple[StageOffer, ...]
    draining: bool = False


class Orphan(msgspec.Struct, frozen=True, order=True):
    """A session that the replica holds at a stage though nobody owns it: to be freed there."""

    session_id: str
    stage: str


class StageLoad(msgspec.Struct, frozen=True):
    """One stage of a live replica; `used` counts reserved, confirmed, held and quarantined slots."""

    stage: str
    slots: int
    kv_bytes: int
    kv_per_session: int
    model: str
    used: int


class Replica(msgspec.Struct, frozen=True):
    """A live replica. `ttl_ms` is what is left until it counts as gone without another beat."""

    replica_id: str
    service: str
    address: str
    draining: bool
    ttl_ms: int
    stages: tuple[StageLoad, ...]


class Gateway(msgspec.Struct, frozen=True):
    """A live gateway. `ttl_ms` is what is left until it counts as gone without another beat."""

    gateway_id: str
    address: str
    ttl_ms: int


class _Unsure(msgspec.Struct, frozen=True):
    stage: str
    session_id: str
    why: str
    age_ms: int


class Registry:
    """The deployment's members. Every call raises StoreUnavailable when Redis does not answer in time."""

    def __init__(self, connection: Connection, pool: Pool, settings: StoreSettings) -> None:
        self._connection = connection
        self._pool = pool
        self._settings = settings

    async def beat(self, beat: ReplicaBeat) -> tuple[Orphan, ...]:
        """Registers the replica, or keeps it alive, and reconciles the plan with what it holds.

        Returns the sessions that it should free: no record, or one that is over, or placed elsewhere by its record. Held sessions always
        count as used slots, from this beat on. A live session whose slot the plan had lost gets it back.

        Of a stage with more than 64 slots taken a beat judges an eighth, and every slot within eight beats: admissions wait behind it.
        """
        check_id(beat.replica_id)
        for offer in beat.stages:
            check_stage(offer.stage)
            for session_id in offer.held:
                check_id(session_id)
        stages = msgspec.json.encode(beat.stages).decode()
        answer = await self._pool.run("replica_beat", beat.replica_id, beat.service, beat.address, int(beat.draining), stages)
        mute_ms, rows = int(answer[0]), [value.decode() for value in answer[1:]]
        unsure = [_Unsure(rows[i], rows[i + 1], rows[i + 2], int(rows[i + 3])) for i in range(0, len(rows), 4)]
        return await self._judge(beat.replica_id, unsure, muted=mute_ms > 0) if unsure else ()

    async def remove(self, replica_id: str) -> None:
        """The replica leaves, its slots with it. Idempotent."""
        await self._pool.run("replica_remove", check_id(replica_id))

    async def replicas(self) -> list[Replica]:
        """Live replicas, draining ones included, in the order of their beats."""
        return [_replica(row) for row in await self._pool.run("replica_list")]

    async def beat_gateway(self, gateway_id: str, address: str) -> None:
        """Registers the gateway, or keeps it alive."""
        await self._pool.run("gateway_beat", check_id(gateway_id), address)

    async def remove_gateway(self, gateway_id: str) -> None:
        """The gateway leaves. Idempotent."""
        await self._pool.run("gateway_remove", check_id(gateway_id))

    async def gateways(self) -> list[Gateway]:
        """Live gateways."""
        return [Gateway(row[0].decode(), row[1].decode(), int(row[2])) for row in await self._pool.run("gateway_list")]

    async def mute_ms(self) -> int:
        """Milliseconds for which nobody may be reaped: Redis was empty or silent, or out of this process' reach. 0: reaping is allowed."""
        return await self._pool.mute_ms()

    async def _judge(self, replica_id: str, unsure: Sequence[_Unsure], *, muted: bool) -> tuple[Orphan, ...]:
        sessions = sorted({row.session_id for row in unsure})
        calls = [Call("status", session_keys(session_id), (self._settings.grace_ms,)) for session_id in sessions]
        statuses = dict(zip(sessions, await self._connection.run_many(calls), strict=True))
        orphans, lost_slots, overdue = [], [], set()
        for row in unsure:
            status = statuses[row.session_id]
            if isinstance(status, Exception):
                continue
            state, tenant = status[0].decode(), status[1].decode()
            placement = decode_placements(status[2]).get(row.stage)
            if state == "expired":
                overdue.add(row.session_id)
            if state == "live" and row.why == "stale":
                continue
            if state == "live" and placement is not None and placement.replica_id == replica_id:
                # in use until the record says otherwise, though the plan has the next place already, or none
                lost_slots.append((row.session_id, tenant, row.stage, replica_id, str(placement.placement)))
            elif not muted and (row.why != "unplanned" or row.age_ms >= self._settings.orphan_after_ms):
                orphans.append(Orphan(row.session_id, row.stage))
        await self._pool.run_many("adopt", lost_slots)
        # A pool that lost its deadlines hears of such a session here, or never.
        await self._pool.run_many("watch", [(session_id, 0) for session_id in sorted(overdue)])
        return tuple(orphans)


def _replica(row: list[Any]) -> Replica:
    stages = tuple(StageLoad(s[0].decode(), int(s[1]), int(s[2]), int(s[3]), s[4].decode(), int(s[5])) for s in row[5:])
    return Replica(row[0].decode(), row[1].decode(), row[2].decode(), row[3] == b"1", int(row[4]), stages)
