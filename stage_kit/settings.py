"""Settings of a service: environment variables with the prefix PARLEY_. Every limit is here, with its unit in its name."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from session_store.secret_files import SecretSettings


class Settings(SecretSettings):
    """Read once at start. A service with settings of its own derives from this class."""

    model_config = SettingsConfigDict(env_prefix="PARLEY_", extra="ignore")

    bind: str = "127.0.0.1:0"
    """Address of the gRPC server; port 0 takes a free one."""
    advertise: str = ""
    """Address that gateways dial; empty: the bound one."""
    http_bind: str = "127.0.0.1:0"
    """Address of /metrics and /health."""
    redis_url: SecretStr = SecretStr("")
    """unix:///path or redis://, perhaps with a password; empty: the service runs unregistered. Or PARLEY_REDIS_URL_FILE."""
    models: Path | None = None
    """Folder of the converted models."""
    ready_file: Path | None = None
    """Written when ready: a JSON object with grpc, http and pid."""
    log_level: str = "info"

    tls_certificate: Path | None = None
    """PEM chain of this replica; with tls_key and tls_ca the server demands client certificates (mTLS)."""
    tls_key: Path | None = None
    tls_ca: Path | None = None

    detached_ttl_s: float = Field(45.0, gt=0)
    """A session without a stream is freed after this, unless the store still has it."""
    detached_recheck_s: float = Field(5.0, gt=0)
    """A detached session that the store still has is asked about again after this."""
    drain_s: float = Field(30.0, ge=0)
    """Longest wait for sessions to end after SIGTERM."""
    heartbeat_s: float = Field(1.0, gt=0)
    """Period of the registry heartbeat."""
    stuck_s: float = Field(60.0, gt=0)
    """An engine whose loop did not turn for so long makes `live` NOT_SERVING."""

    append_bytes: int = Field(256 * 1024, gt=0)
    """Largest append."""
    pending_append_bytes: int = Field(8 * 1024 * 1024, gt=0)
    """Appends of one session that may wait for its engine."""
    kept_output_bytes: int = Field(4 * 1024 * 1024, gt=0)
    """Outputs of one session that may wait for credit or acknowledgement before its steps are skipped; at twice this a response fails."""
    pending_replies_count: int = Field(4096, gt=0)
    """Answers to commands that one stream may leave unread before it is ended."""
    carried_streams_count: int = Field(4096, gt=0)
    """Streams of one Carry call that may be open; a batch of them has at most half of message_bytes."""
    staged_updates_count: int = Field(64, gt=0)
    """Updates of one session that may wait for their first append."""
    edges_count: int = Field(32, gt=0)
    """Edges that may feed one session."""
    message_bytes: int = Field(1024 * 1024, gt=0)
    """Largest gRPC message."""
    ended_placements_count: int = Field(16384, gt=0)
    """Ended placements remembered for each stage, so that late messages find nobody."""
    accepted_interval_ms: int = Field(500, gt=0)
    """Longest delay of a cumulative receipt that finds no message to ride ahead of."""
    output_piece_ms: int | None = Field(None, gt=0)
    """Longest piece of audio in one chunk; None: 100, or what the engine's card says where much may be unheard. Shorter where credit or
    message_bytes would never let it leave."""
    receive_burst_count: int = Field(64, gt=0)
    """Appends of one session that the engine takes before it looks at the next session; within a step it takes one."""
    fair_turns_count: int = Field(8, gt=0)
    """A ready slot that was passed over this often goes first, whatever its urgency."""
    step_failures_count: int = Field(3, gt=0)
    """Steps of one session that may fail in a row before the session is ended."""
    keepalive_ms: int = Field(10_000, gt=0)
    """Period of HTTP/2 pings; peers may ping twice as often."""
    keepalive_timeout_ms: int = Field(3_000, gt=0)
    """A ping unanswered for so long ends the connection."""
