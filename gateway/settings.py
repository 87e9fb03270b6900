"""Every limit of the gateway in one place, with its unit. Read from the environment, prefix PARLEY_."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import SettingsConfigDict

from session_store.secret_files import SecretSettings

from .access.addresses import Proxies
from .access.origins import Origins
from .conversation.limits import Limits
from .graph import DialogOptions, Profile
from .pool import Tls
from .wire.handshake import KEY_FORM, can_be_key

MIB = 1024 * 1024


class Settings(SecretSettings):
    model_config = SettingsConfigDict(env_prefix="PARLEY_", extra="ignore")

    http_bind: str = "127.0.0.1:8080"
    metrics_bind: str = ""
    """Another address for /metrics and /health; /metrics is then there alone. Empty: with everything else."""
    http_tls_certificate: Path | None = None
    """PEM chain shown to clients; with http_tls_key, http_bind speaks TLS and nothing else."""
    http_tls_key: Path | None = None
    http_tls_reload_s: float = Field(30.0, gt=0)
    """How often these two files are looked at for a renewed certificate."""
    advertise: str = ""
    """Address that other gateways and operators see; empty: http_bind."""
    redis_url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    """Perhaps with a password. Or PARLEY_REDIS_URL_FILE, a file that holds it."""
    profile: Path = Path("profiles/embedded.yaml")
    ready_file: Path | None = None
    log_level: str = "INFO"
    api_keys: SecretStr = SecretStr("")
    """Comma-separated keys, for development. Or PARLEY_API_KEYS_FILE. Without keys of any kind everybody is let in."""
    keys_file: Path | None = None
    """YAML or JSON list of hashed keys: see docs/security.md. Read again whenever it changes."""
    keys_in_redis: bool = False
    """Keys are also looked for in the store."""
    keys_cache_ms: int = Field(5000, ge=0)
    """A key from the store is believed for so long without being asked about again."""
    tenant_max_sessions: int = Field(1000, ge=1)
    key_max_sessions: int = Field(1000, ge=1)
    """At once, opened with one key."""
    opens_per_minute: int = Field(600, ge=1)
    """Sessions that one key may ask for within any minute, at all gateways together."""
    client_secrets_per_minute: int = Field(60, ge=1)
    """Client secrets that one key may make within any minute, at all gateways together."""
    failed_auth_per_minute: int = Field(60, ge=1)
    """Refused keys from one address (IPv6: one /64) within any minute, at this gateway; then nobody from there is let in."""
    client_secret_s: int = Field(600, ge=10)
    """A client secret lives so long unless its maker says otherwise."""
    max_client_secret_s: int = Field(7200, ge=10)
    allowed_origins: str = ""
    """Comma-separated origins of web pages that may connect; `*`: any; empty: only pages from the host that is asked."""
    trusted_proxies: str = ""
    """Comma-separated addresses and networks whose X-Forwarded-For is believed."""
    max_body_bytes: int = Field(256 * 1024, ge=1024)
    """Body of an HTTP request."""
    body_timeout_ms: int = Field(5000, ge=1)
    """From the head of an HTTP request to the end of its body."""

    max_event_bytes: int = Field(15 * MIB, ge=1024)
    max_frame_bytes: int = Field(20 * MIB, ge=2048)
    max_pending_input_bytes: int = Field(16 * MIB, ge=1024)
    max_output_bytes: int = Field(2 * MIB, ge=4096)
    """Rendered events waiting for a slow reader; one more closes the session."""
    max_items: int = Field(2000, ge=1)
    max_image_bytes: int = Field(200 * 1024, ge=1024, le=250 * 1024)
    """File of one picture; a stage takes it in one append."""
    max_unit_frames: int = Field(4, ge=0, le=64)
    transcript_timeout_ms: int = Field(8000, ge=1)
    first_output_timeout_ms: int = Field(15_000, ge=1)
    stall_timeout_ms: int = Field(2000, ge=1)
    response_timeout_ms: int = Field(120_000, ge=1)
    update_timeout_ms: int = Field(2000, ge=1)
    queue_wait_ms: int = Field(2000, ge=0)
    """Longest wait for a free place before an upgrade is refused."""
    replace_wait_ms: int = Field(2000, ge=0)
    """Longest wait for a place on another replica of a lost stage."""
    stage_wait_ms: int = Field(10_000, ge=0)
    """A lost stage is given up when no replica had a place for it for so long; 0: at once."""
    stay_ms: int = Field(1000, ge=10)
    """A stage whose replica drains while no other has room stays there, and looks for a place again after so long."""
    attach_timeout_ms: int = Field(500, ge=1)
    """At a takeover, per stage; all at once."""
    resume_timeout_ms: int = Field(10_000, ge=1)
    """From an upgrade that announces a resume to its session.resume."""
    grace_ms: int = Field(30_000, ge=0)
    """A session without a connection may be resumed for so long."""
    pulse_timeout_ms: int = Field(1500, ge=100)
    """A replica that is silent for so long is lost."""
    engine_timeout_ms: int = Field(30_000, ge=100)
    """A stage whose engine does not turn for so long is lost."""
    reap_interval_s: float = Field(5.0, gt=0)
    undurable_limit_ms: int = Field(120_000, ge=1000)
    """Without the store for so long, a session ends at its next quiet point."""
    store_wait_ms: int = Field(20_000, ge=0)
    """At the start: longest wait for a store that is not there yet, or too busy to answer."""
    open_timeout_ms: int = Field(5000, ge=1)
    close_timeout_ms: int = Field(2000, ge=1)
    drain_timeout_ms: int = Field(10_000, ge=0)
    ws_ping_interval_s: float = Field(20.0, gt=0)
    ws_ping_timeout_s: float = Field(20.0, gt=0)
    gateway_beat_s: float = Field(5.0, gt=0)
    lease_margin_ms: int = Field(500, ge=0)
    """A process that did not hear of its leases for their time to live less this says nothing before it has asked the store again."""

    tls_certificate: Path | None = None
    """PEM chain shown to stages; with tls_key and tls_ca the channels to them are mTLS."""
    tls_key: Path | None = None
    tls_ca: Path | None = None
    tls_server_name: str = ""
    """Name in the stages' certificates; empty: the address that is dialled."""

    @field_validator("allowed_origins")
    @classmethod
    def _are_origins(cls, allowed: str) -> str:
        Origins(allowed)
        return allowed

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, trusted: str) -> str:
        Proxies(trusted)
        return trusted

    def http_tls(self) -> tuple[Path, Path] | None:
        """(certificate, key), or None for plain HTTP. Raises ValueError when only one of them is named."""
        files = (self.http_tls_certificate, self.http_tls_key)
        if files == (None, None):
            return None
        certificate, key = files
        if certificate is None or key is None:
            raise ValueError("TLS needs http_tls_certificate and http_tls_key")
        return certificate, key

    def tls(self) -> Tls | None:
        """Raises ValueError when only some of the three files are named, OSError when one cannot be read."""
        files = (self.tls_certificate, self.tls_key, self.tls_ca)
        if not any(files):
            return None
        certificate, key, ca = files
        if certificate is None or key is None or ca is None:
            raise ValueError("mTLS needs tls_certificate, tls_key and tls_ca")
        return Tls(certificate.read_bytes(), key.read_bytes(), ca.read_bytes(), self.tls_server_name)

    def core_limits(self, profile: Profile) -> Limits:
        """The settings and what the profile says of pacing, of the session's length and of its texts."""
        dialog = next((node.options for node in profile.nodes if isinstance(node.options, DialogOptions)), DialogOptions())
        return Limits(
            max_output_lead_ms=profile.pacing.max_output_lead_ms,
            credit_extra_ms=profile.pacing.credit_extra_ms,
            max_session_ms=profile.session.max_session_ms,
            max_prompt_chars=dialog.max_history_chars,
            max_item_chars=dialog.max_text_chars,
            max_pending_input_bytes=self.max_pending_input_bytes,
            max_items=self.max_items,
            max_unit_frames=self.max_unit_frames,
            transcript_timeout_ms=self.transcript_timeout_ms,
            update_timeout_ms=self.update_timeout_ms,
            first_output_timeout_ms=self.first_output_timeout_ms,
            stall_timeout_ms=self.stall_timeout_ms,
            response_timeout_ms=self.response_timeout_ms,
        )

    def accepted_keys(self) -> frozenset[str]:
        """Raises ValueError for what no client can show, and where keys were meant and there is none: it would let everybody in."""
        said = self.api_keys.get_secret_value()
        keys = frozenset(key.strip() for key in said.split(",") if key.strip())
        if said and not keys:
            raise ValueError("PARLEY_API_KEYS names no key: leave it out to let everybody in")
        if not all(can_be_key(key) for key in keys):
            raise ValueError(f"PARLEY_API_KEYS: a key has {KEY_FORM}")
        return keys
