"""What each metric tells an operator, and every value that its labels may have. `tools/metrics_table.py` makes the table of it."""

from __future__ import annotations

from typing import NamedTuple, get_args

from parley_stage.v1 import stage_pb2

from gateway import census, metrics
from gateway.conversation import commands, events, items
from gateway.conversation.errors import ERRORS
from stage_kit.metrics import APPEND_OUTCOMES, KV_STATES


class Values(NamedTuple):
    """`shown` in the table; `allowed`: all of them, or None where a deployment's own files name them."""

    shown: str
    allowed: frozenset[str] | None = None


class Meaning(NamedTuple):
    question: str
    labels: dict[str, Values] = {}
    unit: str = ""
    """Empty: as the name's ending says."""


def _each(*values: str) -> Values:
    return Values(", ".join(f"`{value}`" for value in values), frozenset(values))


def _names(union: object) -> frozenset[str]:
    return frozenset(each.__name__ for each in get_args(union))


STAGE = Values("a stage of the profile")
_CODES = frozenset(stage_pb2.StageError.Code.keys())
_CODE = Values("`StageError.Code` of the contract", _CODES)
_ERROR = Values("a code of the error table", frozenset(ERRORS))
_KINDS = frozenset(field.name for field in stage_pb2.Payload.DESCRIPTOR.oneofs_by_name["value"].fields)
_OUTPUT = Values("payload kind by field name, `unit_done`, `last`, `empty`", _KINDS | {"unit_done", "last", "empty"})
_COMMAND = Values("name of a client event's command", _names(commands.Client))
_EVENT = Values("name of a server event, `Durability`, `Skipped`, `Replayed`", _names(events.Event) | {"Durability", "Skipped", "Replayed"})
_OPENED = Values("`accepted`, or a code of the error table", frozenset(ERRORS) | {"accepted"})
_TAKEN = Values("`taken`, `overtaken`, or a code of the error table", frozenset(ERRORS) | set(metrics.TAKEOVER_OUTCOMES))
_SECRET = Values("`made`, or a code of the error table", frozenset(ERRORS) | {"made"})
_STATUS = _each(*(each for each in get_args(items.ResponseStatus) if each != "in_progress"))
_CLOSE = _each(*metrics.CLOSE_REASONS)
_WHY = _each(*metrics.ACCESS_WHYS)
_PYTHON = {"version": Values("version of Parley"), "python": Values("version of Python")}

_GATEWAY = {
    "build_info": Meaning(
        "Which build and profile runs where?",
        {**_PYTHON, "profile": Values("name of the profile"), "model": Values("its model")},
    ),
    "sessions": Meaning("How many conversations are there, and who waits for its client?", {"state": _each(*census.STATES)}),
    "sessions_opening": Meaning("How many are on their way in?"),
    "sessions_queued": Meaning("Do people wait because every place is taken? What KEDA adds to the sessions."),
    "queue_seconds": Meaning("How long do they wait, and does it help?", {"outcome": _each(*metrics.QUEUE_OUTCOMES)}),
    "draining": Meaning("Is this gateway on its way out?", unit="0 or 1"),
    "opens_total": Meaning("Who gets in, and why not the others?", {"outcome": _OPENED}),
    "open_seconds": Meaning("How long is the way in?"),
    "access_refusals_total": Meaning("Who is kept out, and by what?", {"why": _WHY}),
    "client_secrets_total": Meaning("Do browsers get their secrets?", {"outcome": _SECRET}),
    "key_file_reads_total": Meaning("Did a changed key file take effect?", {"outcome": _each(*metrics.KEY_FILE_OUTCOMES)}),
    "closes_total": Meaning("Why do conversations end?", {"reason": _CLOSE}),
    "key_file_current": Meaning("Do the keys of the file hold, or those from before it was changed?", unit="0 or 1"),
    "client_events_total": Meaning("What do clients send?", {"type": _COMMAND}),
    "server_events_total": Meaning("What are clients told?", {"type": _EVENT}),
    "refusals_total": Meaning("Which errors do clients meet within a conversation?", {"code": _ERROR}),
    "append_to_stage_seconds": Meaning("Does the gateway pass speech on at once?"),
    "batch_parcels": Meaning("How many sessions share a message to or from a replica?", {"direction": _each("to_stage", "from_stage")}),
    "chunk_to_client_seconds": Meaning("Does reply audio leave when it is due?"),
    "commit_seconds": Meaning("Is the store fast enough for every turn?"),
    "journal_bytes": Meaning("How much does a turn write to the store, and all of them in a second?"),
    "undurable_commits_total": Meaning("Are conversations on their own, because the store does not take their state?"),
    "store_reachable": Meaning("Does this gateway reach the store?", unit="0 or 1"),
    "fenced_total": Meaning(
        "How often did a gateway hold a session that another one has by now? Each stage of one that is resumed elsewhere says so, too.",
        {"by": _each(*metrics.FENCED_BY)},
    ),
    "loop_lag_seconds": Meaning("Is the process too busy to be on time?"),
    "stage_errors_total": Meaning("Which stage fails, and how?", {"stage": STAGE, "code": _CODE}),
    "turned_back_total": Meaning("Which stage cannot keep up with what it is sent?", {"stage": STAGE}),
    "pulses_lost_total": Meaning("How often is a replica given up because it fell silent?"),
    "takeovers_total": Meaning("Do resumes succeed?", {"outcome": _TAKEN}),
    "resume_gaps_total": Meaning("How many who resumed had missed events that nobody keeps any more?"),
    "resume_seconds": Meaning("How long does a resume take?"),
    "replacements_total": Meaning("Do lost stages come back?", {"stage": STAGE, "outcome": _each(*metrics.REPLACEMENT_OUTCOMES)}),
    "replace_seconds": Meaning("How long is a conversation without a stage that it lost?"),
    "moves_total": Meaning("Do stages leave replicas that drain?", {"stage": STAGE, "outcome": _each(*metrics.MOVE_OUTCOMES)}),
    "move_seconds": Meaning("How long does a move take?"),
    "tenures_lapsed_total": Meaning("How often did the process stand still for longer than its leases?"),
    "idle_sessions_total": Meaning("How many conversations are left unused?"),
    "reaped_total": Meaning("How many conversations did nobody hold any more?"),
    "reattaches_total": Meaning("How often does a connection to a stage break and come back?", {"stage": STAGE}),
    "quarantined_total": Meaning("Do slots get lost, because a stage did not say that they are free?", {"stage": STAGE}),
    "barge_in_seconds": Meaning("How long until a client is told that its user speaks, with a reply or without?"),
    "turn_seconds": Meaning("How long is the silence before an answer? From the decision, not from the last sound of the voice."),
    "playback_gap_seconds": Meaning("Do answers stop in the middle? As far as the gateway can tell: what the network adds is not in it."),
    "responses_total": Meaning("How do answers end?", {"status": _STATUS}),
    "output_waiting_bytes": Meaning("How much is not read yet?"),
    "slow_readers": Meaning("Who is about to be cut off, because it does not read?"),
    "output_overflows_total": Meaning("Who was cut off, because it did not read?"),
}  # fmt: skip

_BY_STAGE = {"stage": STAGE}
_STAGE = {
    "build_info": Meaning("Which build runs where?", {**_PYTHON, "service": Values("name of the service")}),
    "engine_info": Meaning(
        "Which engine and model serves a stage?", {**_BY_STAGE, "engine": Values("its engine"), "model": Values("its model")}
    ),
    "loaded": Meaning("Does it still load its model?", unit="0 or 1"),
    "registered": Meaning("Does the registry know of this replica?", unit="0 or 1"),
    "draining": Meaning("Is this replica on its way out?", _BY_STAGE, "0 or 1"),
    "sessions": Meaning("How many slots are taken?", _BY_STAGE),
    "slots": Meaning("How many are there?", _BY_STAGE),
    "sessions_detached": Meaning("How many sessions wait here for a gateway?", _BY_STAGE),
    "slots_unclosable": Meaning("Does the engine keep slots that nobody uses?", _BY_STAGE),
    "engine_age_seconds": Meaning("Does the engine stand still with work to do?", _BY_STAGE),
    "kv_bytes": Meaning("How much KV memory is there?", _BY_STAGE),
    "kv_reserved_bytes": Meaning("How much of it is spoken for?", _BY_STAGE),
    "kv_pages": Meaning("How much of it is really in use?", {**_BY_STAGE, "state": _each(*KV_STATES)}),
    "kept_output_bytes": Meaning("Do gateways acknowledge what they have?", _BY_STAGE),
    "pending_append_bytes": Meaning("Does input pile up before the engine?", _BY_STAGE),
    "appends_total": Meaning("What becomes of what stages are sent?", {**_BY_STAGE, "outcome": _each(*APPEND_OUTCOMES)}),
    "outputs_total": Meaning("What do stages make?", {**_BY_STAGE, "kind": _OUTPUT}),
    "refused_total": Meaning(
        "Which commands are refused? `CODE_STALE_AUTHORITY`: of a gateway that has the session no more.", {**_BY_STAGE, "code": _CODE}
    ),
    "faults_total": Meaning("How often does an engine fail?", _BY_STAGE),
    "cancels_total": Meaning("How often is work thrown away, because somebody interrupts?", _BY_STAGE),
    "credit_waits_total": Meaning("How often is sound ready before it may leave? Good: the stage is ahead.", _BY_STAGE),
    "batch_slots": Meaning("How many sessions share a step?", _BY_STAGE),
    "step_seconds": Meaning("How long is a step?", _BY_STAGE),
    "append_wait_seconds": Meaning("How long does input wait for the engine?", _BY_STAGE),
    "output_wait_seconds": Meaning("How long does what is made wait to leave?", _BY_STAGE),
    "first_output_seconds": Meaning("Which stage is it that makes an answer late?", _BY_STAGE),
    "unit_lag_seconds": Meaning("Does a native model keep up: is each unit done before the next is complete?", _BY_STAGE),
    "unit_length_seconds": Meaning("What is the deadline of that lag?", _BY_STAGE),
    "loop_lag_seconds": Meaning("Is the process too busy to be on time?"),
}

MEANINGS: dict[str, Meaning] = {
    **{f"parley_gateway_{name}": meaning for name, meaning in _GATEWAY.items()},
    **{f"parley_stage_{name}": meaning for name, meaning in _STAGE.items()},
}
"""By name, counters with their `_total`."""
