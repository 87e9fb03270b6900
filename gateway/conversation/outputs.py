"""What stages say: each output once and in order, passed along its edges at once, then judged, then consumed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from . import hearing, native, policy, speaking, unit_log
from .commands import (
    AudioOut,
    DecisionOut,
    NoteOut,
    OpaqueOut,
    StageAccepted,
    StageChunk,
    StageFailed,
    TextOut,
    ToolOut,
    TranscriptOut,
)
from .errors import Refusal
from .response import Live

if TYPE_CHECKING:
    from .session import Conversation

_FRAME = re.compile(r"camera\[(\d{1,15})\]")
_KINDS: dict[type, str] = {
    TextOut: "text", ToolOut: "tool", TranscriptOut: "transcript", DecisionOut: "decision", AudioOut: "audio", type(None): ""
}  # fmt: skip


def chunk(c: Conversation, chunk: StageChunk) -> None:
    """An output of a stage. Audio waits for its time."""
    if chunk.position <= c.received.get(chunk.stage, 0):
        return
    c.received[chunk.stage] = chunk.position
    output = chunk.output
    made = c.responses.of(chunk) if c.fence.admits(chunk.epoch) and not isinstance(output, NoteOut) else None
    consumed = chunk.position <= c.state.consumed.get(chunk.stage, 0)
    passed = isinstance(output, DecisionOut | TranscriptOut) or made is not None
    if not passed or not _pass_on(c, chunk, made, again=consumed):
        c.edges.withdraw(chunk.stage, chunk.position)
    if consumed:
        return  # before a takeover; some reader may not have had it
    if chunk.stage == c.graph.audio_stage:
        c.held.push(chunk)
        return
    match output:
        case DecisionOut() if chunk.stage == c.graph.model_stage:
            native.decided(c, chunk, output)
        case DecisionOut():
            hearing.decided(c, output)
        case TranscriptOut():
            hearing.heard(c, output)
        case NoteOut() if chunk.stage == c.graph.model_stage:
            unit_log.noted(c, output)
    if made is not None and made is c.responses.of(chunk):
        _made(c, made, chunk)
    elif chunk.failed:
        _input_failed(c, chunk)
    c.consumed(chunk)


def _made(c: Conversation, live: Live, chunk: StageChunk) -> None:
    """Something for a response that is live, or coming."""
    live.progress_at = c.now
    match chunk.output:
        case TextOut() if live.made_as:
            native.text(c, live, chunk.output)
        case TextOut():
            speaking.text(c, live, chunk.output)
        case ToolOut():
            speaking.tool(c, live, chunk.output)
    if chunk.failed:
        speaking.fail(c, "stage_failed", chunk.stage)
    elif chunk.last and chunk.stage == c.graph.text_stage:
        speaking.text_ended(c, live, chunk)


def _pass_on(c: Conversation, chunk: StageChunk, made: Live | None, *, again: bool) -> bool:
    """False when it goes no further: the words of a written reply are not spoken. `again`: nothing new is owed for it."""
    if made is not None and made.modality == "text":
        return False
    kind = chunk.output.kind if isinstance(chunk.output, OpaqueOut) else _KINDS[type(chunk.output)]
    fed = c.relay(chunk.stage, kind, chunk.position, chunk.wire, chunk)
    if made is None or again or c.graph.audio_stage not in fed:
        return True
    made.sound_fed = made.sound_fed or chunk.last
    if made.owed_since is None and (made.sound_fed or not made.made_as):
        made.owed_since = c.now  # a model that speaks unit by unit may hold the end of each back until it has the next
    return True


def accepted(c: Conversation, mark: StageAccepted) -> None:
    c.edges.accepted(mark.stage, mark.edges)
    c.outbox.obeyed(mark.stage, mark.command_number)


def failed(c: Conversation, failure: StageFailed) -> None:
    live = c.responses.live
    if failure.stage not in c.graph.response_stages:
        _stage_failed(c, failure.stage)
    elif live is not None and failure.response_id in ("", live.label) and c.fence.admits(failure.epoch or c.fence.epoch):
        speaking.fail(c, "stage_failed", failure.stage)


def _input_failed(c: Conversation, chunk: StageChunk) -> None:
    """A stage that hears failed at something, or refuses what it was given."""
    finish = chunk.finish
    if chunk.stage != c.graph.model_stage or finish is None:
        _stage_failed(c, chunk.stage)
    elif chunk.response_id:
        return  # of a turn that is over
    elif not finish.error_param:
        c.refuse(Refusal("stage_failed", stage=chunk.stage), None)
    else:
        frame = _FRAME.match(finish.error_param)
        event_id = c.memory.frame_events.get(int(frame[1])) if frame else None
        param = "video_frames" if frame else policy.session_param(c.graph, chunk.stage, finish.error_param)
        c.refuse(Refusal("input_refused", param, stage=chunk.stage, why=finish.error_message), event_id)


def _stage_failed(c: Conversation, stage: str) -> None:
    """A stage that hears failed at something: no words will come, or a turn may be missed."""
    if stage == c.graph.transcript_stage:
        for item_id in list(c.dialog.hearing):
            hearing.transcript_failed(c, item_id)
    elif stage not in c.graph.response_stages:
        c.refuse(Refusal("stage_failed", stage=stage), None)
