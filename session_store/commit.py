"""What one turn of an actor writes, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from session_store.connection import Call
from session_store.errors import LeaseForgotten, LimitExceeded, SequenceConflict, SessionClosed, SessionMissing, StaleGeneration
from session_store.keys import session_keys
from session_store.lease import Lease
from session_store.placement import Placement, encode_placements
from session_store.settings import StoreSettings


class Commit(msgspec.Struct, frozen=True):
    """What one turn of an actor writes, all or nothing.

    `entries` are (head, payload) of server events numbered from `first_seq` without a gap (with none of them, it is the next one's number:
    what is written continues the last commit, or nothing is); `hot` is the small part of the checkpoint;
    `fields` sets (bytes) or deletes (None) other parts. `acked_seq`: the client has all events up to it, they are dropped. `active`
    puts off the idle deadline. `replace` starts a new checkpoint and journal at `first_seq`. `placements` replaces the record's.
    `number` counts the commits of a lease from 1: each is written once, however often it comes, and none after a later one (0: uncounted).
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
    number: int = 0


class Committed(msgspec.Struct, frozen=True):
    """The journal after a commit: the first number still kept and the last. Nothing is kept when first is above last."""

    first_kept_seq: int
    last_seq: int


def commit_call(commit: Commit, settings: StoreSettings) -> tuple[Call, int]:
    """The script's call and its payload in bytes. Raises LimitExceeded."""
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
        *(len(commit.entries), len(written), len(deleted), commit.number, *body, *deleted),
    )
    return Call("commit", session_keys(commit.lease.session_id), args), size


def decode_committed(answer: Sequence[bytes]) -> Committed:
    """What `commit.lua` answered. Raises what its verdict means."""
    verdict = answer[0]
    if verdict == b"ok":
        return Committed(int(answer[1]), int(answer[2]))
    if verdict == b"seq":
        raise SequenceConflict(int(answer[1]))
    if verdict in (b"closed", b"closing"):
        raise SessionClosed(answer[1].decode())
    if verdict == b"missing":
        raise SessionMissing("the session has no record")
    if verdict == b"forgotten":
        raise LeaseForgotten("the record is older than the lease")
    raise StaleGeneration("the lease is not the record's")
