"""What Prometheus reads of a gateway. Labels never hold ids, text or keys."""

from __future__ import annotations

from functools import cache

from prometheus_client import Counter, Gauge, Histogram

from .tally import Tally

_FAST = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
_DELTA = (0.0002, 0.0003, 0.0005, 0.00075, 0.001, 0.00125, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25)
_TURN = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0)

SESSIONS = Gauge("parley_gateway_sessions", "Live sessions")
OPENS = Counter("parley_gateway_opens_total", "Upgrade requests by what became of them", ["outcome"])
OPEN_SECONDS = Histogram("parley_gateway_open_seconds", "Admission and opening of all stages", buckets=_FAST)
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
UNDURABLE = Counter("parley_gateway_undurable_commits_total", "Commits that the store did not take in time")
STAGE_ERRORS = Counter("parley_gateway_stage_errors_total", "Errors from stages", ["stage", "code"])
TURNED_BACK = Counter("parley_gateway_turned_back_total", "Appends that a stage had no room for yet", ["stage"])
PULSES_LOST = Counter("parley_gateway_pulses_lost_total", "Replicas given up because they fell silent")
TAKEOVERS = Counter("parley_gateway_takeovers_total", "Resumes by what became of them", ["outcome"])
RESUME_SECONDS = Histogram("parley_gateway_resume_seconds", "Resume asked to resumed told", buckets=_FAST)
REPLACEMENTS = Counter("parley_gateway_replacements_total", "Lost stages placed anew, waited for, or given up", ["stage", "outcome"])
MOVES = Counter("parley_gateway_moves_total", "Stages that left a draining replica between two turns, or could not", ["stage", "outcome"])
MOVE_SECONDS = Histogram("parley_gateway_move_seconds", "Quiet point to the stage being there on another replica", buckets=_FAST)
TENURES_LAPSED = Counter("parley_gateway_tenures_lapsed_total", "Times this process stood still for longer than its leases")
IDLE_SESSIONS = Counter("parley_gateway_idle_sessions_total", "Times a session was found unused for too long")
REAPED = Counter("parley_gateway_reaped_total", "Sessions ended because nobody held them")
REATTACHES = Counter("parley_gateway_reattaches_total", "Stage streams taken up again", ["stage"])
BARGE_IN_SECONDS = Histogram("parley_gateway_barge_in_seconds", "Decision received to the terminal written", buckets=_FAST)
FIRST_AUDIO_SECONDS = Histogram("parley_gateway_turn_seconds", "End of turn decided to the first reply audio written", buckets=_TURN)
RESPONSES = Counter("parley_gateway_responses_total", "Responses by how they ended", ["status"])
OVERFLOWS = Counter("parley_gateway_output_overflows_total", "Sessions closed because their client did not read")


@cache
def client_events(kind: str) -> Counter:
    return CLIENT_EVENTS.labels(kind)


@cache
def server_events(kind: str) -> Counter:
    return SERVER_EVENTS.labels(kind)
