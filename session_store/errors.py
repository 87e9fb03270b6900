"""What the store raises. Messages name settings, stages and states, never ids' owners, tokens or contents."""

from __future__ import annotations


class StoreError(Exception):
    """Root of every error of the store."""


class StoreUnavailable(StoreError):
    """Redis did not answer in time, or refuses to serve. Whether the call took effect is unknown."""


class StoreUrlError(StoreError, ValueError):
    """What should be Redis' URL is none. The message quotes nothing of it."""


class StaleGeneration(StoreError):
    """The lease is not the record's: another holder or a higher attachment has the session."""


class LeaseForgotten(StaleGeneration):
    """The lease is younger than the record: Redis lost the writes that made it. `restore` gives it back, if nobody has a younger one."""


class SessionClosed(StoreError):
    """The session reached its terminal state, or is being closed. `reason` is the one that won."""

    def __init__(self, reason: str = "") -> None:
        super().__init__("the session is closed")
        self.reason = reason


class SessionMissing(StoreError):
    """There is no record: it never was, was forgotten after its close, or Redis lost its data."""


class SessionExists(StoreError):
    """A record of that id is held by somebody else."""


class SessionExpired(StoreError):
    """A deadline of the session passed: nobody may resume it, and a reaper will close it. `reason` names the deadline."""

    def __init__(self, reason: str) -> None:
        super().__init__("the session expired")
        self.reason = reason


class NoCheckpoint(StoreError):
    """There is a record and nothing to go on from: its holder writes the first checkpoint now, or again. The session stays as it is."""


class InvalidToken(StoreError):
    """The token is not one of the session's, or the session is another tenant's; which of them is not told."""


class ReplayGap(StoreError):
    """The journal cannot go on where the client is: it keeps `first_kept_seq` to `last_seq`. Nothing changed; `accept_gap` goes on."""

    def __init__(self, first_kept_seq: int, last_seq: int) -> None:
        super().__init__(f"the journal keeps {first_kept_seq} to {last_seq}")
        self.first_kept_seq = first_kept_seq
        self.last_seq = last_seq


class SequenceConflict(StoreError):
    """Journal entries do not follow the last one kept. Nothing was written; `expected_seq` is the next number."""

    def __init__(self, expected_seq: int) -> None:
        super().__init__(f"the journal goes on at {expected_seq}")
        self.expected_seq = expected_seq


class LimitExceeded(StoreError):
    """A value is over its bound; `setting` names it. Nothing was written."""

    def __init__(self, setting: str, limit: int) -> None:
        super().__init__(f"over {setting} ({limit})")
        self.setting = setting
        self.limit = limit


class AtCapacity(StoreError):
    """Every live replica of `stage` is full, or its free slots are for those who came before.

    `position` is the place in the queue, from 1, that the session had at the end, or would have had. `retry_after_ms` is a hint.
    """

    def __init__(self, retry_after_ms: int, stage: str, position: int = 1) -> None:
        super().__init__(f"stage {stage} is full")
        self.retry_after_ms = retry_after_ms
        self.stage = stage
        self.position = position


class StagesUnavailable(StoreError):
    """No replica that takes sessions offers `stage`."""

    def __init__(self, stage: str) -> None:
        super().__init__(f"no replica offers stage {stage}")
        self.stage = stage


class TenantLimit(StoreError):
    """The tenant, or the key, has as many sessions as it may. `retry_after_ms` is a hint."""

    def __init__(self, retry_after_ms: int) -> None:
        super().__init__("the tenant is at its limit")
        self.retry_after_ms = retry_after_ms


class KeyTaken(StoreError):
    """Another API key has the same text. `key_id` is that key's."""

    def __init__(self, key_id: str) -> None:
        super().__init__(f"key {key_id} has the same text")
        self.key_id = key_id


class ReservationLost(StoreError):
    """A reservation expired, or its replica went, before it was confirmed. `stage` is empty when the whole session's did."""

    def __init__(self, stage: str = "") -> None:
        super().__init__(f"the reservation of stage {stage} is gone" if stage else "the reservation is gone")
        self.stage = stage
