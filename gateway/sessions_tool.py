"""`python -m gateway.sessions_tool show|end ID`: where a session is and how it is there, from its record and its stages, and nothing of
what was said; or its end.

What `parley sessions` runs.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from datetime import UTC, datetime

import grpc
from parley_stage.v1 import stage_pb2 as pb

from session_store import Lease, Placement, Record, Store
from session_store.errors import StoreError

from .pool import StagePool
from .settings import Settings

PAST_ANY_SEQ = 2**53
"""Enough to read a record without its journal."""
INSPECT_S = 2.0
REASON = "ended_by_operator"


def main(arguments: list[str] | None = None) -> None:
    """Exits with 0, or with one line and 1."""
    parser = argparse.ArgumentParser(prog="parley sessions", description="Where a session is, and how it is there; or its end.")
    parser.add_argument("what", choices=("show", "end"))
    parser.add_argument("id", help="of the session: sess_...")
    options = parser.parse_args(arguments)
    try:
        asyncio.run(_show(options.id) if options.what == "show" else _end(options.id))
    except (StoreError, OSError, ValueError) as failure:
        sys.exit(f"sessions: {failure}")


async def _end(session_id: str) -> None:
    """The terminal transition; its gateway finds out with its next beat, tells the client and frees the stages, else a reaper does."""
    async with await Store.open(Settings().redis_url.get_secret_value()) as store:
        record = (await store.records.load(session_id, PAST_ANY_SEQ)).record
        lease = Lease(session_id, record.attachment, record.holder_id)
        ended = await store.records.begin_close(lease, REASON)
    print(f"session   {session_id}\nstate     {'closing' if ended else 'changed meanwhile, or over: look again'}")


async def _show(session_id: str) -> None:
    settings = Settings()
    async with await Store.open(settings.redis_url.get_secret_value()) as store:
        record = (await store.records.load(session_id, PAST_ANY_SEQ)).record
        gateways = {gateway.gateway_id: gateway.address for gateway in await store.registry.gateways()}
        replicas = {replica.replica_id: "drains" if replica.draining else "serves" for replica in await store.registry.replicas()}
    for name, value in _lines(record, gateways.get(record.gateway_id, "")):
        print(f"{name:<10}{value}")
    pool = StagePool(settings.tls())
    try:
        held = await asyncio.gather(*(_held(pool, record.session_id, stage, place) for stage, place in record.placements.items()))
    finally:
        await pool.close()
    for (stage, place), said in zip(record.placements.items(), held, strict=True):
        there = f"{place.replica_id} at {place.address}, {replicas.get(place.replica_id, 'gone')}"
        print(f"{stage:<10}{there}; placement {place.placement}: {said}")


def _lines(record: Record, address: str) -> Iterator[tuple[str, str]]:
    yield "session", record.session_id
    yield "state", f"{record.state} {record.reason}".strip()
    yield "of", f"tenant {record.tenant}, profile {record.profile}"
    yield "gateway", f"{record.gateway_id}, {f'at {address}' if address else 'gone'}; attachment {record.attachment}"
    yield "begun", _time(record.created_ms)
    for name in ("lease", "grace", "idle", "closing"):
        if deadline_ms := getattr(record, f"{name}_deadline_ms"):
            yield name, f"until {_time(deadline_ms)}"
    if record.closed_ms:
        yield "closed", _time(record.closed_ms)
    yield "events", f"last {record.last_seq}, kept from {record.first_kept_seq} on ({record.journal_bytes} bytes)"


async def _held(pool: StagePool, session_id: str, stage: str, place: Placement) -> str:
    """What the replica itself says of the session at the stage."""
    try:
        answer: pb.InspectResponse = await pool.stub(place.address).Inspect(pb.InspectRequest(session_id=session_id), timeout=INSPECT_S)
    except grpc.aio.AioRpcError as failure:
        return f"does not answer ({failure.code().name})"
    for held in answer.sessions if answer.replica_id == place.replica_id else ():
        if held.stage == stage:
            there = "attached" if held.attached else "no gateway attached"
            waits = f"{held.waiting_appends} appends wait, {held.kept_outputs} outputs kept ({held.kept_bytes} bytes)"
            return f"{there}, attachment {held.attachment}, epoch {held.epoch}, {waits}, for {held.age_ms / 1000:.0f} s"
    return "not held"


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


if __name__ == "__main__":
    main()
