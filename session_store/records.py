"""A session's record: who holds it, its checkpoint and journal, and its one end."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from session_store.commit import Commit, Committed, commit_call, decode_committed
from session_store.committer import Committer
from session_store.connection import Call, Connection
from session_store.errors import SessionClosed, SessionExists, SessionMissing, StaleGeneration, StoreError
from session_store.exchange import Value
from session_store.keys import check_id, session_keys
from session_store.lease import Lease, Renewed
from session_store.placement import Placement, decode_placements, encode_placements
from session_store.pool import Pool
from session_store.record import Stored, decode_stored
from session_store.settings import StoreSettings
from session_store.takeover import Reaped, TakenOver, decode_takeover
from session_store.tokens import check_digest, digest

RENEWED_AT_ONCE = 16
"""Leases in one round trip: commits of the same process pass between two."""


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

        `idle_ms` overrides the setting (0: never idle). `token_digest` is `tokens.digest` of the token that may resume the session
        (empty: nobody may). Raises SessionExists when another holder has it, SessionClosed when it is over.
        """
        described = self._described(session_id, gateway_id, holder_id, tenant, profile, placements, idle_ms, token_digest)
        answer = await self._watched("create", session_id, described)
        if answer[0] == b"closed":
            raise SessionClosed(answer[1].decode())
        if answer[0] == b"exists":
            raise SessionExists("another holder has the session")
        return Lease(session_id, int(answer[1]), holder_id)

    async def restore(
        self,
        lease: Lease,
        gateway_id: str,
        tenant: str,
        profile: str,
        placements: Mapping[str, Placement],
        *,
        idle_ms: int | None = None,
        token_digest: str = "",
    ) -> bool:
        """Puts the record back under the same lease after SessionMissing or LeaseForgotten: Redis lost it, or the writes that made it.

        True when it was lost: the checkpoint and the journal are to be written again then, by a commit with `replace`, and a session
        without a client is to be detached again. Of several that do so the highest attachment wins. Raises StaleGeneration when
        somebody has a younger lease, SessionClosed when it is over.
        """
        described = self._described(lease.session_id, gateway_id, lease.holder_id, tenant, profile, placements, idle_ms, token_digest)
        answer = await self._watched("restore", lease.session_id, (*described, lease.attachment))
        if answer[0] == b"closed":
            raise SessionClosed(answer[1].decode())
        if answer[0] == b"stale":
            raise StaleGeneration("the lease is not the record's")
        return bool(answer[0] == b"restored")

    async def renew(self, gateway_id: str, leases: Sequence[Lease], active: Collection[str] = ()) -> Renewed:
        """Keeps the leases of one gateway alive, puts off the idle deadline of those in `active`, and answers which are lost, idle
        or forgotten.

        A session whose record is gone, or older than the lease, is not lost: Redis lost its writes, nobody else has it, and it is to be
        restored; its next commit raises SessionMissing or LeaseForgotten. The gateway's own registration is kept alive, too. Raises
        StoreUnavailable when a lease could not be judged.
        """
        settings = self._settings
        limits = (settings.lease_ttl_ms, settings.journal_max_age_ms, settings.journal_max_bytes, settings.grace_ms)

        def call(lease: Lease) -> Call:
            args = (settings.key_ttl_ms, lease.attachment, lease.holder_id, *limits, int(lease.session_id in active))
            return Call("renew", session_keys(lease.session_id), args)

        calls = [call(lease) for lease in leases]
        renewed = Renewed({}, set(), set())
        ours: list[str | bytes] = []
        failure = None
        outcomes: list[Any] = []
        for begin in range(0, len(calls), RENEWED_AT_ONCE):
            outcomes += await self._connection.run_many(calls[begin : begin + RENEWED_AT_ONCE])
        for lease, outcome in zip(leases, outcomes, strict=True):
            if isinstance(outcome, StoreError):
                failure = outcome
            elif outcome[0] == b"stale":
                renewed.lost[lease.session_id] = ""
            elif outcome[0] == b"closed":
                renewed.lost[lease.session_id] = outcome[1].decode()
            elif outcome[0] in (b"ok", b"idle"):
                ours += (lease.session_id, outcome[1])
                if outcome[0] == b"idle":
                    renewed.idle.add(lease.session_id)
            else:
                renewed.forgotten.add(lease.session_id)
        if failure is not None:
            raise failure
        await self._pool.run("touch", check_id(gateway_id), *ours)
        return renewed

    async def commit(self, commit: Commit) -> Committed:
        """Writes one turn, together with those of other sessions in one round trip.

        Raises StaleGeneration (LeaseForgotten: Redis lost the lease, see `restore`), SessionClosed, SessionMissing, SequenceConflict
        or LimitExceeded, and then nothing was written. After StoreUnavailable it may have been: go on with `replace`.
        """
        call, size = commit_call(commit, self._settings)
        return decode_committed(await self._committer.run(call, size))

    async def detach(self, lease: Lease, *, grace_ms: int | None = None) -> bool:
        """The client's connection is gone; the grace begins. True for the one transition from attached to detached."""
        settings = self._settings
        grace = settings.grace_ms if grace_ms is None else grace_ms
        due = await self._as_holder("detach", lease, settings.key_ttl_ms, grace, settings.grace_ms)
        if due == b"0":
            return False
        await self._schedule(lease.session_id, due)
        return True

    async def takeover(
        self,
        session_id: str,
        *,
        token: str,
        new_digest: str,
        tenant: str,
        gateway_id: str,
        holder_id: str,
        after_seq: int,
        accept_gap: bool = False,
    ) -> TakenOver:
        """Resumes a session here, whether it is detached or still attached elsewhere: one script that checks, takes and reads.

        `token` is what the client showed, `new_digest` the digest of the token that it will be told; `after_seq` is the last number
        that it has. The old token stays valid until `settle_token`, so that a resume whose answer was lost can be tried again; of
        several takeovers the last has the session, and every lease before it is stale.

        Raises, and changes nothing: SessionMissing; InvalidToken (or another tenant's session); SessionClosed; SessionExpired;
        NoCheckpoint; ReplayGap when the journal cannot go on after `after_seq`, unless `accept_gap`.
        """
        try:
            keys = session_keys(session_id)
        except ValueError:
            raise SessionMissing("no session has such an id") from None
        settings = self._settings
        args = (
            *(settings.key_ttl_ms, settings.lease_ttl_ms, settings.grace_ms, check_id(tenant), digest(token), check_digest(new_digest)),
            *(check_id(gateway_id), check_id(holder_id), after_seq, int(accept_gap)),
        )
        answer = await self._connection.run("takeover", keys, *args, 1)
        if answer[0] == b"expired" and await self._pool.mute_ms() > 0:
            # Deadlines that passed while Redis was away are nobody's fault.
            answer = await self._connection.run("takeover", keys, *args, 0)
        taken = decode_takeover(session_id, holder_id, answer)
        await self._pool.run_many("touch", [(gateway_id, session_id, answer[3])])
        return taken

    async def settle_token(self, lease: Lease) -> bool:
        """The client has the newest token, its first message came: the older ones are revoked. False when the lease is not the record's."""
        return bool(await self._as_holder("settle_token", lease, self._settings.key_ttl_ms))

    async def begin_close(self, lease: Lease, reason: str) -> bool:
        """The terminal transition, with the clean-up still to come: True for exactly one caller, who cleans up and then calls `close`.

        Nobody may resume or commit from now on; checkpoint and journal are kept. After `closing_ms` without the `close` a reaper
        takes the clean-up over.
        """
        due = await self._as_holder("begin_close", lease, self._settings.key_ttl_ms, reason, self._settings.closing_ms)
        if due == b"0":
            return False
        await self._schedule(lease.session_id, due)
        return True

    async def close(self, lease: Lease, reason: str) -> bool:
        """Ends the session and deletes its checkpoint and journal. True for exactly one caller; its slots are admission's to release.

        After `begin_close` or `reap` it is their second step, and the reason is theirs. Without them it is both steps in one.
        """
        if not await self._as_holder("close", lease, self._settings.closed_record_ttl_ms, reason):
            return False
        await self._schedule(lease.session_id, 0)
        return True

    async def expire(self, session_id: str) -> str | None:
        """Ends a session whose deadline passed: its reason, to exactly one caller (who then cleans up), else None.

        Reasons: disconnect_grace_expired, lease_expired (nobody renewed for lease and grace), idle_ttl_expired, or that of a close
        whose cleaner did not end. Nothing expires while the registry is mute. `reap` is the form in two steps.
        """
        if await self._pool.mute_ms() > 0:
            return None
        settings = self._settings
        reason = await self._connection.run("expire", session_keys(session_id), settings.closed_record_ttl_ms, settings.grace_ms)
        if not reason:
            return None
        await self._schedule(session_id, 0)
        return cast("str", reason.decode())

    async def reapable(self, limit: int = 100) -> list[str]:
        """Sessions to `reap`, the longest due first: a deadline of theirs passed, as far as the pool knows. None while it is mute."""
        if await self._pool.mute_ms() > 0:
            return []
        return [session_id.decode() for session_id in await self._pool.run("reapable", limit)]

    async def reap(self, session_id: str, gateway_id: str, holder_id: str) -> Reaped | None:
        """Takes a session whose deadline passed (see `expire`) in order to close it: for exactly one caller, who cleans up and closes it.

        Its old gateway is fenced. None when it lives, another cleans up, it is over, or the registry is mute.
        """
        if await self._pool.mute_ms() > 0:
            return None
        settings = self._settings
        keys, holder = session_keys(session_id), check_id(holder_id)
        limits = (settings.key_ttl_ms, settings.grace_ms, settings.closing_ms)
        answer = await self._connection.run("reap", keys, *limits, check_id(gateway_id), holder)
        await self._schedule(session_id, answer[1])
        if answer[0] != b"ok":
            return None
        return Reaped(Lease(session_id, int(answer[2]), holder), decode_placements(answer[4]), answer[3].decode())

    async def load(self, session_id: str, after_seq: int = 0) -> Stored:
        """The record, the checkpoint, and the journal's entries above `after_seq` that are still kept. Raises SessionMissing."""
        answer = await self._connection.run("load", session_keys(session_id), after_seq)
        if not answer:
            raise SessionMissing("the session has no record")
        return decode_stored(answer)

    def _described(
        self,
        session_id: str,
        gateway_id: str,
        holder_id: str,
        tenant: str,
        profile: str,
        placements: Mapping[str, Placement],
        idle_ms: int | None,
        token_digest: str,
    ) -> tuple[Value, ...]:
        settings = self._settings
        return (
            *(settings.key_ttl_ms, settings.lease_ttl_ms, settings.idle_ms if idle_ms is None else idle_ms),
            *(session_id, check_id(gateway_id), check_id(holder_id), check_id(tenant), profile),
            *(encode_placements(placements), check_digest(token_digest) if token_digest else ""),
        )

    async def _watched(self, script: str, session_id: str, args: Sequence[Value]) -> Sequence[bytes]:
        """Runs the script, and has the pool look after the session even if this process dies at once."""
        settings = self._settings
        watch = self._pool.call("watch", session_id, settings.lease_ttl_ms + settings.grace_ms)
        watched, answer = await self._connection.run_many([watch, Call(script, session_keys(session_id), args)])
        for outcome in (watched, answer):
            if isinstance(outcome, StoreError):
                raise outcome
        return cast("Sequence[bytes]", answer)

    async def _as_holder(self, script: str, lease: Lease, ttl_ms: int, *rest: Value) -> Any:
        return await self._connection.run(script, session_keys(lease.session_id), ttl_ms, lease.attachment, lease.holder_id, *rest)

    async def _schedule(self, session_id: str, due_ms: bytes | int) -> None:
        """Tells the pool when to look at the record (0: never). The record is the judge, so it matters little if this is lost."""
        await self._pool.run_many("schedule", [(session_id, due_ms)])
