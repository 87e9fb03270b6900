"""Every bound of the client. Each is a setting with its unit in its name."""

from __future__ import annotations

from msgspec import Struct


class Limits(Struct, frozen=True):
    """How long the client waits, and how much it keeps."""

    open_timeout_s: float = 15.0
    """Longest wait for one upgrade and for the server's first event."""
    patience_s: float = 0.0
    """Keep dialling this long while the server is unreachable or full; 0 dials once."""
    ping_interval_s: float = 20.0
    ping_timeout_s: float = 20.0
    close_timeout_s: float = 2.0

    grace_s: float = 30.0
    """A lost connection is dialled again for this long; the server keeps the session for as long."""
    resume_timeout_s: float = 5.0
    """Longest wait for one attempt to resume."""
    backoff_first_s: float = 0.25
    """The first attempt is made at once, the second after up to twice this, and so on up to backoff_max_s."""
    backoff_max_s: float = 4.0
    """A connection that lasted this long was a good one: the next loss begins anew."""
    audio_ring_ms: int = 30_000
    """Sent audio that is kept to be sent again; and the audio that an outage may hold back, before sending raises OutageTooLong."""
    frame_ring_bytes: int = 8 * 1024 * 1024
    """The same for camera frames."""
    command_log_bytes: int = 4 * 1024 * 1024
    """The same for all other client events."""
    picture_bytes: int = 200 * 1024
    """Largest file of a camera frame: what a server takes that is not set up otherwise (`max_image_bytes` of its capabilities)."""
    ack_interval_s: float = 1.0
    """The server is told at least this often what was taken, so that it can forget it."""
    ack_events: int = 64
    """Or after this many events."""
    inbox_bytes: int = 4 * 1024 * 1024
    """Events received and not taken yet; beyond it the connection is not read."""
