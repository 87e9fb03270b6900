"""What the store raises. Messages name settings, stages and states, never ids' owners, tokens or contents."""

from __future__ import annotations


class StoreError(Exception):
    """Root of every error of the store."""


class StoreUnavailable(StoreError):
    """Redis did not answer in time, or refuses to serve. Whether the call took effect is unknown."""


class StaleGeneration(StoreError):
    """The lease is not the record's: another holder or a higher attachment has the session."""


class SessionClosed(StoreError):
    """The session reached its terminal state. `reason` is the one that won."""

    def __init__(self, reason: str = "") -> None:
        super().__init__("the session is closed")
        self.reason = reason


class SessionMissing(StoreError):
    """There is no record: it never was, was forgotten after its close, or Redis lost its data."""


class SessionExists(StoreError):
    """A record of that id is held by somebody else."""


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
    """Every live replica of `stage` is full. `retry_after_ms` is a hint."""

    def __init__(self, retry_after_ms: int, stage: str) -> None:
        super().__init__(f"stage {stage} is full")
        self.retry_after_ms = retry_after_ms
        self.stage = stage


class StagesUnavailable(StoreError):
    """No replica that takes sessions offers `stage`."""

    def __init__(self, stage: str) -> None:
        super().__init__(f"no replica offers stage {stage}")
        self.stage = stage


class TenantLimit(StoreError):
    """The tenant has as many sessions as it may. `retry_after_ms` is a hint."""

    def __init__(self, retry_after_ms: int) -> None:
        super().__init__("the tenant is at its limit")
        self.retry_after_ms = retry_after_ms


class ReservationLost(StoreError):
    """A reservation expired, or its replica went, before it was confirmed. `stage` is empty when the whole session's did."""

    def __init__(self, stage: str = "") -> None:
        super().__init__(f"the reservation of stage {stage} is gone" if stage else "the reservation is gone")
        self.stage = stage
