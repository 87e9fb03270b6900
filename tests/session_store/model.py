"""A small world and one session's record in it, as the state machines see them."""

from __future__ import annotations

from hypothesis import strategies as st

from session_store import Lease, Placement, StoreSettings

STAGES = ("asr", "llm")
REPLICAS = ("r1", "r2")
SESSIONS = ("s1", "s2", "s3")
JOURNAL_BYTES = 40
# So long that no deadline passes within an example; what deadlines do has tests of its own.
NEVER_MS = 10_000_000
LIMITS = StoreSettings(
    redis_timeout_ms=5_000,
    journal_max_bytes=JOURNAL_BYTES,
    **dict.fromkeys(
        (
            *("replica_ttl_ms", "reservation_ttl_ms", "lease_ttl_ms", "stale_slot_ms", "silence_ms", "mute_ms"),
            *("journal_max_age_ms", "grace_ms", "idle_ms", "closing_ms"),
        ),
        NEVER_MS,
    ),
)

replicas, sessions, stages = st.sampled_from(REPLICAS), st.sampled_from(SESSIONS), st.sampled_from(STAGES)


class Kept:
    """One session's record in the model."""

    def __init__(self, lease: Lease, placed: dict[str, Placement], token: str) -> None:
        self.lease = lease
        self.leases = [lease]
        self.placed = placed
        self.state, self.reason = "attached", ""
        self.passed: set[str] = set()
        self.tokens = [token]
        self.revoked = ["", "never given"]
        self.first, self.last = 1, 0
        self.journal: dict[int, bytes] = {}
        self.fields: dict[str, bytes] = {}
        self.has_checkpoint = False

    @property
    def open(self) -> bool:
        return self.state in ("attached", "detached")

    @property
    def deadlines(self) -> tuple[tuple[str, str], ...]:
        """Deadlines of its state with their reasons; the first that passed wins."""
        grace, lease, idle = ("grace", "disconnect_grace_expired"), ("lease", "lease_expired"), ("idle", "idle_ttl_expired")
        by_state = {"attached": (lease, idle), "detached": (grace, lease, idle), "closing": (("closing", self.reason),), "closed": ()}
        return by_state[self.state]

    @property
    def expired(self) -> str | None:
        return next((reason for name, reason in self.deadlines if name in self.passed), None)

    def take(self, lease: Lease) -> None:
        self.lease = lease
        self.leases.append(lease)
        self.passed = set()

    def end(self, state: str, reason: str) -> None:
        if self.state != "closing":
            self.reason = reason
        self.state, self.passed = state, set()
        if state == "closed":
            self.journal, self.fields = {}, {}

    def trim(self) -> None:
        while sum(len(payload) for payload in self.journal.values()) > JOURNAL_BYTES:
            del self.journal[self.first]
            self.first += 1
