"""A session's record: who holds it, its checkpoint and journal, and its one end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from session_store.committer import Committer
from session_store.connection import Call, Connection
from session_store.errors import LimitExceeded, SequenceConflict, SessionClosed, SessionExists, SessionMissing, StaleGeneration, StoreError
from session_store.keys import check_id, session_keys
from session_store.placement import Placement, encode_placements
from session_store.pool import Pool
from session_store.record import Stored, decode_stored
from session_store.settings import StoreSettings


class Lease(msgspec.Struct, frozen=True):
    """The right to command a session: its generation (rises at each takeover) and the holder's random id."""

    session_id: str
    attachment: int
    holder_id: str


class Commit(msgspec.Struct, frozen=True):
    """What one turn of an actor writes, all or nothing.

    `entries` are (head, payload) of server events numbered from `first_seq` without a gap; `hot` is the small part of the checkpoint;
    `fields` sets (bytes) or deletes (None) other parts. `acked_seq`: the client has all events up to it, they are dropped. `active`
    puts off the idle deadline. `replace` starts a new checkpoint and journal at `first_seq`. `placements` replaces the record's.
    """

    lease: Lease
    first_seq: int
    entries: Sequence[tuple[bytes, bytes]]
    hot: bytes
    fields: Mapping[str, bytes | None] = {}
    acked_seq: int = 0
    active: bool = True
    replace: bool = False
    placements: Mapping[str, Placement] | None = None


class Committed(msgspec.Struct, frozen=True):
    """The journal after a commit: the first number still kept and the last. Nothing is kept when first is above last."""

    first_kept_seq: int
    last_seq: int


class Records:
    """The sessions of the deployment. Every call raises StoreUnavailable when Redis does not answer in time."""

    def __init__(self, connection: Connection, committer: Committer, pool: Pool, settings: StoreSettings) -> None:
        self._connection = connection
        self._committer = committer
        self._pool = pool
        self._settings = settings

    async def create(
        self,
        session_id: str,
        gateway_id: str,
        holder_id: str,
        tenant: str,
        profile: str,
        placements: Mapping[str, Placement],
        *,
        idle_ms: int | None = None,
        token_digest: str = "",
    ) -> Lease:
        """Creates the record and gives its lease. The same holder's repeat gets the same lease.

        `idle_ms` overrides the setting (0: never idle). Raises SessionExists when another holder has it, SessionClosed when it is over.
        """
        settings = self._settings
        answer = await self._connection.run(
            "create",
            session_keys(session_id),
            settings.key_ttl_ms,
            settings.lease_ttl_ms,
            settings.idle_ms if idle_ms is None else idle_ms,
            session_id,
            check_id(gateway_id),
            check_id(holder_id),
            check_id(tenant),
            profile,
            encode_placements(placements),
            token_digest,
        )
        if answer[0] == b"closed":
            raise SessionClosed(answer[1].decode())
        if answer[0] == b"exists":
            raise SessionExists("another holder has the session")
        return Lease(session_id, int(answer[1]), holder_id)

    async def renew(self, gateway_id: str, leases: Sequence[Lease]) -> set[str]:
        """Keeps the leases of one gateway alive and answers the sessions that are not its own any more (taken over, or closed).

        A session without a record is not among them: Redis lost its data, nobody else has it, and its next commit raises SessionMissing.
        The gateway's own registration is kept alive, too. Raises StoreUnavailable when a lease could not be judged.
        """
        settings = self._settings
        limits = (settings.lease_ttl_ms, settings.journal_max_age_ms, settings.journal_max_bytes)

        def call(lease: Lease) -> Call:
            return Call("renew", session_keys(lease.session_id), (settings.key_ttl_ms, lease.attachment, lease.holder_id, *limits))

        calls = [call(lease) for lease in leases]
        lost, ours, failure = set(), [], None
        for lease, outcome in zip(leases, await self._connection.run_many(calls) if calls else [], strict=True):
            if isinstance(outcome, StoreError):
                failure = outcome
            elif outcome in (b"stale", b"closed"):
                lost.add(lease.session_id)
            elif outcome == b"ok":
                ours.append(lease.session_id)
        if failure is not None:
            raise failure
        await self._pool.run("touch", check_id(gateway_id), *ours)
        return lost

    async def commit(self, commit: Commit) -> Committed:
        """Writes one turn, together with those of other sessions in one round trip.

        Raises StaleGeneration, SessionClosed, SessionMissing, SequenceConflict or LimitExceeded, and then nothing was written. After
        StoreUnavailable it may have been: go on with `replace`.
        """
        call, size = self._commit_call(commit)
        answer = await self._committer.run(call, size)
        verdict = answer[0]
        if verdict == b"ok":
            return Committed(int(answer[1]), int(answer[2]))
        if verdict == b"seq":
            raise SequenceConflict(int(answer[1]))
        if verdict == b"closed":
            raise SessionClosed(answer[1].decode())
        if verdict == b"missing":
            raise SessionMissing("the session has no record")
        raise StaleGeneration("the lease is not the record's")

    async def detach(self, lease: Lease, *, grace_ms: int | None = None) -> bool:
        """The client's connection is gone; the grace begins. True for the one transition from attached to detached."""
        settings = self._settings
        grace = settings.grace_ms if grace_ms is None else grace_ms
        keys = session_keys(lease.session_id)
        return bool(await self._connection.run("detach", keys, settings.key_ttl_ms, lease.attachment, lease.holder_id, grace))

    async def close(self, lease: Lease, reason: str) -> bool:
        """Ends the session and deletes its checkpoint and journal. True for exactly one caller; its slots are admission's to release."""
        keys = session_keys(lease.session_id)
        closed_ttl_ms = self._settings.closed_record_ttl_ms
        return bool(await self._connection.run("close", keys, closed_ttl_ms, lease.attachment, lease.holder_id, reason))

    async def expire(self, session_id: str) -> str | None:
        """Ends a session whose deadline passed: its reason, to exactly one caller (who then cleans up), else None.

        Reasons: disconnect_grace_expired, lease_expired (nobody renewed for lease and grace), idle_ttl_expired. Nothing expires while
        the registry is mute.
        """
        if int(await self._pool.run("muted")) > 0:
            return None
        settings = self._settings
        reason = await self._connection.run("expire", session_keys(session_id), settings.closed_record_ttl_ms, settings.grace_ms)
        return reason.decode() or None

    async def load(self, session_id: str, after_seq: int = 0) -> Stored:
        """The record, the checkpoint, and the journal's entries above `after_seq` that are still kept. Raises SessionMissing."""
        answer = await self._connection.run("load", session_keys(session_id), after_seq)
        if not answer:
            raise SessionMissing("the session has no record")
        return decode_stored(answer)

    def _commit_call(self, commit: Commit) -> tuple[Call, int]:
        settings = self._settings
        if len(commit.hot) > settings.hot_max_bytes:
            raise LimitExceeded("hot_max_bytes", settings.hot_max_bytes)
        body: list[str | bytes] = [part for entry in commit.entries for part in entry]
        written = {name: value for name, value in commit.fields.items() if value is not None}
        deleted = [name for name, value in commit.fields.items() if value is None]
        for name, value in written.items():
            body += (name, value)
        size = len(commit.hot) + sum(len(part) for part in body)
        if size > settings.commit_max_bytes:
            raise LimitExceeded("commit_max_bytes", settings.commit_max_bytes)
        args = (
            *(settings.key_ttl_ms, commit.lease.attachment, commit.lease.holder_id, settings.lease_ttl_ms),
            *(settings.journal_max_age_ms, settings.journal_max_bytes, commit.acked_seq, int(commit.active), int(commit.replace)),
            *(commit.first_seq, commit.hot, b"" if commit.placements is None else encode_placements(commit.placements)),
            *(len(commit.entries), len(written), len(deleted), *body, *deleted),
        )
        return Call("commit", session_keys(commit.lease.session_id), args), size
