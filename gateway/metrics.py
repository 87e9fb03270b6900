"""What Prometheus reads of a gateway. Labels never hold ids, text or keys."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from platform import python_version
from typing import get_args

from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics

from session_store.build import version

from .conversation.items import ResponseStatus
from .tally import Tally

_FAST = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
_DELTA = (0.0002, 0.0003, 0.0005, 0.00075, 0.001, 0.00125, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25)
_OPEN = (*_FAST, 2.0, 3.0, 5.0, 10.0)
_QUEUE = (0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0)
_PLACE = (0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 120.0)
_GAP = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0)
_LAG = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_BYTES = (64, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 262_144, 1_048_576)
_TURN = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0)

# a second series for each counter and histogram, of which nobody asks anything
disable_created_metrics()  # type: ignore[no-untyped-call]

BUILD = Gauge("parley_gateway_build_info", "Always 1: what runs here", ["version", "python", "profile", "model"])
SESSIONS_OPENING = Gauge("parley_gateway_sessions_opening", "Sessions on their way to their slots and stages, those that wait included")
SESSIONS_QUEUED = Gauge("parley_gateway_sessions_queued", "Sessions that wait for a slot")
QUEUE_SECONDS = Histogram("parley_gateway_queue_seconds", "Wait of sessions that found no slot at once", ["outcome"], buckets=_QUEUE)
OPENS = Counter("parley_gateway_opens_total", "Upgrade requests by what became of them", ["outcome"])
ACCESS_REFUSALS = Counter("parley_gateway_access_refusals_total", "Upgrades and requests refused for what their sender is, by why", ["why"])
CLIENT_SECRETS = Counter("parley_gateway_client_secrets_total", "Client secrets asked for, by what became of it", ["outcome"])
KEY_FILE_READS = Counter("parley_gateway_key_file_reads_total", "Times the key file had changed, by what became of it", ["outcome"])
KEY_FILE_CURRENT = Gauge("parley_gateway_key_file_current", "0 while the key file cannot be read, and older keys hold")
OPEN_SECONDS = Histogram("parley_gateway_open_seconds", "Admission, with its wait, and opening of all stages", buckets=_OPEN)
CLOSES = Counter("parley_gateway_closes_total", "Sessions ended, by reason", ["reason"])
CLIENT_EVENTS = Counter("parley_gateway_client_events_total", "Events from clients", ["type"])
SERVER_EVENTS = Counter("parley_gateway_server_events_total", "Events to clients", ["type"])
REFUSALS = Counter("parley_gateway_refusals_total", "Typed errors sent, by code", ["code"])
TO_STAGE = Tally("parley_gateway_append_to_stage_seconds", "Append received to stage write", buckets=_FAST)
BATCHES = Histogram(
    "parley_gateway_batch_parcels",
    "Messages in one batch of a carrier",
    ["direction"],
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
)
TO_CLIENT = Tally("parley_gateway_chunk_to_client_seconds", "Stage chunk (or its due time) to socket write", buckets=_DELTA)
COMMIT_SECONDS = Tally("parley_gateway_commit_seconds", "Commit of a transition to the store", buckets=_DELTA)
JOURNAL_BYTES = Tally("parley_gateway_journal_bytes", "Journal and checkpoint that one commit writes", buckets=_BYTES)
FENCED = Counter("parley_gateway_fenced_total", "Times a session turned out to be another gateway's, by who said so", ["by"])
STORE_REACHABLE = Gauge("parley_gateway_store_reachable", "1 when the store took the last beat")
LOOP_LAG = Tally("parley_gateway_loop_lag_seconds", "Lateness of a timer of 100 ms", buckets=_LAG)
UNDURABLE = Counter("parley_gateway_undurable_commits_total", "Commits that the store did not take in time")
STAGE_ERRORS = Counter("parley_gateway_stage_errors_total", "Errors from stages", ["stage", "code"])
TURNED_BACK = Counter("parley_gateway_turned_back_total", "Appends that a stage had no room for yet", ["stage"])
PULSES_LOST = Counter("parley_gateway_pulses_lost_total", "Replicas given up because they fell silent")
TAKEOVERS = Counter("parley_gateway_takeovers_total", "Resumes by what became of them", ["outcome"])
RESUME_GAPS = Counter("parley_gateway_resume_gaps_total", "Resumes whose client missed events that are kept no more")
RESUME_SECONDS = Histogram("parley_gateway_resume_seconds", "Resume asked to resumed told", buckets=_OPEN)
REPLACEMENTS = Counter("parley_gateway_replacements_total", "Lost stages placed anew, waited for, or given up", ["stage", "outcome"])
REPLACE_SECONDS = Histogram("parley_gateway_replace_seconds", "Stage lost to placed anew, its wait included", buckets=_PLACE)
MOVES = Counter("parley_gateway_moves_total", "Stages that left a draining replica between two turns, or could not", ["stage", "outcome"])
MOVE_SECONDS = Histogram("parley_gateway_move_seconds", "Quiet point to the stage being there on another replica", buckets=_OPEN)
TENURES_LAPSED = Counter("parley_gateway_tenures_lapsed_total", "Times this process stood still for longer than its leases")
IDLE_SESSIONS = Counter("parley_gateway_idle_sessions_total", "Times a session was found unused for too long")
REAPED = Counter("parley_gateway_reaped_total", "Sessions ended because nobody held them")
QUARANTINED = Counter("parley_gateway_quarantined_total", "Slots that a stage did not confirm to be free", ["stage"])
REATTACHES = Counter("parley_gateway_reattaches_total", "Stage streams taken up again", ["stage"])
BARGE_IN_SECONDS = Histogram("parley_gateway_barge_in_seconds", "Decision received to the terminal written", buckets=_FAST)
FIRST_AUDIO_SECONDS = Histogram("parley_gateway_turn_seconds", "End of turn decided to the first reply audio written", buckets=_TURN)
PLAYBACK_GAPS = Tally("parley_gateway_playback_gap_seconds", "Silence within a reply, because its sound came too late", buckets=_GAP)
RESPONSES = Counter("parley_gateway_responses_total", "Responses by how they ended", ["status"])
OVERFLOWS = Counter("parley_gateway_output_overflows_total", "Sessions closed because their client did not read")

QUEUE_OUTCOMES = ("admitted", "refused", "left", "failed")
FENCED_BY = ("store", "stage", "beat")
TAKEOVER_OUTCOMES = ("taken", "overtaken")
REPLACEMENT_OUTCOMES = ("placed", "waited", "failed")
MOVE_OUTCOMES = ("moved", "stayed")
KEY_FILE_OUTCOMES = ("read", "failed")
ACCESS_WHYS = ("missing", "unknown", "revoked", "expired", "ephemeral", "origin", "address_rate", "key_rate")
CLOSE_REASONS = (
    *("client_closed", "disconnect_grace_expired", "session_taken_over", "session_expired", "idle_timeout", "server_draining"),
    *("stage_lost", "internal_error", "api_key_revoked"),
)
OWN_REFUSALS = ("at_capacity", "stages_unavailable", "internal_error")
"""Of the server's own making, not of who asks."""


def prepare(stages: Iterable[str], profile: str, model: str) -> None:
    """Series that begin at zero: the first of a rare event is seen to happen only beside a zero."""
    BUILD.clear()
    BUILD.labels(version(), python_version(), profile, model).set(1)
    for outcome in ("accepted", *OWN_REFUSALS):
        OPENS.labels(outcome)
    CLIENT_SECRETS.labels("made")
    KEY_FILE_CURRENT.set(1)
    REFUSALS.labels("internal_error")
    for family, values in (
        (QUEUE_SECONDS, QUEUE_OUTCOMES),
        (FENCED, FENCED_BY),
        (TAKEOVERS, (*TAKEOVER_OUTCOMES, "session_resume_expired")),
        (CLOSES, CLOSE_REASONS),
        (ACCESS_REFUSALS, ACCESS_WHYS),
        (KEY_FILE_READS, KEY_FILE_OUTCOMES),
        (RESPONSES, (each for each in get_args(ResponseStatus) if each != "in_progress")),
    ):
        for value in values:
            family.labels(value)
    for stage in stages:
        for each in (QUARANTINED, TURNED_BACK, REATTACHES):
            each.labels(stage)
        STAGE_ERRORS.labels(stage, "CODE_ENGINE_FAILED")
        for outcome in REPLACEMENT_OUTCOMES:
            REPLACEMENTS.labels(stage, outcome)
        for outcome in MOVE_OUTCOMES:
            MOVES.labels(stage, outcome)


@cache
def client_events(kind: str) -> Counter:
    return CLIENT_EVENTS.labels(kind)


@cache
def server_events(kind: str) -> Counter:
    return SERVER_EVENTS.labels(kind)
