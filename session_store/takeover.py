"""What a takeover gives, and why it is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from session_store.errors import InvalidToken, NoCheckpoint, ReplayGap, SessionClosed, SessionExpired, SessionMissing
from session_store.lease import Lease
from session_store.placement import Placement
from session_store.record import Stored, decode_stored


class TakenOver(msgspec.Struct, frozen=True):
    """The new lease and what was stored, with the journal above the client's last number.

    `gap`: some events that the client does not have are gone, or (Redis lost its last writes) it has some that the journal does not
    know; to be announced. The journal then begins at `stored.record.first_kept_seq`, if that is above what the client has.
    """

    lease: Lease
    stored: Stored
    gap: bool


class Reaped(msgspec.Struct, frozen=True):
    """A session in the state closing under the reaper's lease: to be closed at these stages, released, and closed here."""

    lease: Lease
    placements: dict[str, Placement]
    reason: str


def decode_takeover(session_id: str, holder_id: str, answer: Sequence[Any]) -> TakenOver:
    """What `takeover.lua` answered. Raises what its verdict means."""
    verdict = answer[0]
    if verdict == b"ok":
        return TakenOver(Lease(session_id, int(answer[1]), holder_id), decode_stored(answer[4:]), gap=answer[2] == 1)
    if verdict == b"gap":
        raise ReplayGap(int(answer[1]), int(answer[2]))
    if verdict == b"closed":
        raise SessionClosed(answer[1].decode())
    if verdict == b"expired":
        raise SessionExpired(answer[1].decode())
    if verdict == b"bare":
        raise NoCheckpoint("the session's checkpoint is not written yet")
    if verdict == b"missing":
        raise SessionMissing("the session has no record")
    raise InvalidToken("the token is not the session's")
