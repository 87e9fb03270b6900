"""What a resume reads: a session's record, checkpoint and journal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from session_store.journal import Entry, decode_entries
from session_store.placement import Placement, decode_placements


class Record(msgspec.Struct, frozen=True):
    """What is known of a session. States: attached, detached, closing, closed. Times are Redis' in ms; 0: none."""

    session_id: str
    state: str
    attachment: int
    holder_id: str
    gateway_id: str
    tenant: str
    profile: str
    placements: dict[str, Placement]
    reason: str
    created_ms: int
    closed_ms: int
    lease_deadline_ms: int
    grace_deadline_ms: int
    idle_deadline_ms: int
    closing_deadline_ms: int
    first_kept_seq: int
    last_seq: int
    journal_bytes: int
    commit_number: int
    """Of the newest commit of the lease."""


class Stored(msgspec.Struct, frozen=True):
    """A record with its checkpoint (`hot` and the other fields) and its journal. A closed one has only the record."""

    record: Record
    hot: bytes
    fields: dict[str, bytes]
    journal: list[Entry]


def decode_stored(answer: Sequence[Sequence[bytes]]) -> Stored:
    """What `load.lua` answered: the record's and the checkpoint's fields, heads and payloads of the journal."""
    checkpoint = _pairs(answer[1])
    fields = {name.removeprefix("f:"): value for name, value in checkpoint.items() if name != "hot"}
    return Stored(_record(_pairs(answer[0])), checkpoint.get("hot", b""), fields, list(decode_entries(answer[2], answer[3])))


def _pairs(flat: Sequence[bytes]) -> dict[str, bytes]:
    return {flat[i].decode(): flat[i + 1] for i in range(0, len(flat), 2)}


def _record(fields: dict[str, bytes]) -> Record:
    def text(name: str) -> str:
        return fields.get(name, b"").decode()

    def number(name: str) -> int:
        return int(fields.get(name, b"0"))

    values: dict[str, Any] = {name: number(name) for name in ("attachment", "created_ms", "closed_ms", "journal_bytes", "commit_number")}
    values |= {f"{name}_deadline_ms": number(f"{name}_deadline_ms") for name in ("lease", "grace", "idle", "closing")}
    return Record(
        session_id=text("session"),
        state=text("state"),
        holder_id=text("holder_id"),
        gateway_id=text("gateway"),
        tenant=text("tenant"),
        profile=text("profile"),
        placements=decode_placements(fields.get("placements", b"")),
        reason=text("reason"),
        first_kept_seq=number("journal_first"),
        last_seq=number("journal_last"),
        **values,
    )
