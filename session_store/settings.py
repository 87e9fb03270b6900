"""Every limit of the store, with its unit in its name. Read from the environment with the prefix PARLEY_."""

from __future__ import annotations

from pydantic import Field, PositiveInt
from pydantic_settings import BaseSettings, SettingsConfigDict


class StoreSettings(BaseSettings):
    """Bounds and deadlines. All processes of a deployment should agree on them; deadlines are judged by Redis' clock."""

    model_config = SettingsConfigDict(env_prefix="PARLEY_", extra="ignore", frozen=True)

    redis_timeout_ms: PositiveInt = Field(default=250, description="longest wait for one call; then StoreUnavailable")
    redis_connections: PositiveInt = Field(default=32, description="most connections of one process, the committer's included")
    sentinel_poll_ms: PositiveInt = Field(default=500, description="how often the sentinels are asked whether the primary is another one")
    key_ttl_ms: PositiveInt = Field(default=86_400_000, description="backstop of every key; never a transition")
    closed_record_ttl_ms: PositiveInt = Field(default=3_600_000, description="how long a closed session's record still says so")

    replica_ttl_ms: PositiveInt = Field(default=5_000, description="a replica without a beat for so long is gone, its slots with it")
    gateway_ttl_ms: PositiveInt = Field(default=15_000, description="a gateway without a beat for so long is gone")
    lease_ttl_ms: PositiveInt = Field(default=15_000, description="a record that nobody renewed for so long has lost its gateway")
    grace_ms: PositiveInt = Field(default=30_000, description="how long a session without a connection or a gateway may be resumed")
    idle_ms: int = Field(default=600_000, ge=0, description="a session without activity for so long expires; 0: never")
    closing_ms: PositiveInt = Field(default=15_000, description="a session that is closing for so long gets another cleaner")

    reservation_ttl_ms: PositiveInt = Field(default=15_000, description="an unconfirmed reservation expires after so long")
    stale_slot_ms: PositiveInt = Field(
        default=50_000, description="nobody renewed a session for so long: its slots may go (lease, grace, 5 s)"
    )
    orphan_after_ms: PositiveInt = Field(
        default=5_000, description="a session held without a record is an orphan after so long, and 8 beats"
    )
    mute_ms: PositiveInt = Field(default=15_000, description="nothing is reaped for so long after Redis was empty or silent")
    silence_ms: PositiveInt = Field(default=10_000, description="no beat of anybody for so long means that Redis was away")
    capacity_retry_after_ms: PositiveInt = Field(default=2_000, description="hint given with AtCapacity")
    tenant_retry_after_ms: PositiveInt = Field(default=5_000, description="hint given with TenantLimit")

    waiter_ttl_ms: PositiveInt = Field(default=1_000, description="who waits for a slot and does not ask for so long is passed over")
    queue_poll_ms: PositiveInt = Field(default=20, description="shortest pause between two questions of who waits for a slot")

    journal_max_age_ms: PositiveInt = Field(default=60_000, description="older journal entries are dropped")
    journal_max_bytes: PositiveInt = Field(default=8 * 1024 * 1024, description="heads and payloads kept of one session")
    hot_max_bytes: PositiveInt = Field(default=1_024, description="most bytes of the checkpoint's field that every commit writes")
    commit_max_bytes: PositiveInt = Field(default=4 * 1024 * 1024, description="most bytes that one commit may carry")
    commit_round_trips_count: PositiveInt = Field(default=2, description="most round trips of commits under way at once")
    commit_batch_sessions: PositiveInt = Field(default=128, description="most commits in one round trip")
    commit_batch_bytes: PositiveInt = Field(default=4 * 1024 * 1024, description="most bytes in one round trip of several commits")
