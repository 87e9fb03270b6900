"""What the core does when it is restored elsewhere, and when a stage is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import client, events, native, speaking, unit_log
from .commands import InputAppend, Resume, StageAttached, StageGone, StageLost, StagePlaced
from .effects import CommitOrder, Replace, Vacate
from .errors import Refusal

if TYPE_CHECKING:
    from .session import Conversation

REHEARD_MS = 500
"""Of the latest sound, for a detector that is placed anew while nobody speaks."""


def resumed(c: Conversation, resume: Resume) -> None:
    """Reconcile with what the stages have: input goes on where all have it, orders not obeyed are given again.

    Whoever drained or closed it before could not end it: it goes on.
    """
    rolled_back = is_rolled_back(c, resume)
    heard_ms = _answered_until(c, resume)
    c.state.closing = c.state.draining = False
    for stage in resume.attached:
        c.edges.accepted(stage.stage, stage.edges)
        c.outbox.obeyed(stage.stage, stage.command_number)
        c.outbox.outrun(stage.stage, stage.command_number, stage.edges.get("core", 0))
    if resume.resends:  # what waits behind an update comes again, too
        c.state.held_commands = [held for held in c.state.held_commands if held.client_seq is None and not isinstance(held, InputAppend)]
    position = input_position(c, resume)
    c.edges.rewind("client", {stage.stage: stage.edges.get("client", 0) for stage in resume.attached})
    c.input.rewind(position)
    seen, c.input.frames = c.input.frames, frames_position(c, resume)
    c.native.frames = max(0, c.native.frames - max(0, seen - c.input.frames))  # those come again, and count once
    c.edges.rewind("camera", {stage.stage: stage.edges.get("camera", 0) for stage in resume.attached})
    for name, base in c.state.bases.items():
        c.edges.forget_up_to(name, base)
    c.playback.granted_ms = 0
    c.effects.extend(order for order in c.outbox.unanswered() if order.stage not in resume.lost)
    if rolled_back:
        _begin_above(c, resume)
    c.state.lost = list(dict.fromkeys((*c.state.lost, *resume.lost)))
    for name in list(c.state.lost):
        lost(c, StageLost(name, "not there at the takeover"), heard_ms)


def _answered_until(c: Conversation, resume: Resume) -> int | None:
    """Up to where a native model that is lost at a takeover had heard what the client sends again; what was said while it was waited for
    is not answered yet. None: nothing comes again."""
    if c.memory.recap is not None and c.graph.model_stage in c.state.lost:
        return c.memory.recap.heard_until_ms
    return c.input.end_ms(c.config.input_format) if resume.resends else None


def input_position(c: Conversation, resume: Resume) -> int:
    """Samples of the client's audio from which it goes on: what every stage that hears has, and for one that is lost, the open turn."""
    hears = c.graph.readers("client", "audio")
    marks = [stage.edges.get("client", 0) for stage in resume.attached if stage.stage in hears]
    if not marks:
        return c.input.position
    if not resume.resends:
        return max(marks)
    lost_ears = [stage for stage in hears if stage in resume.lost or stage in c.state.lost]
    return min(marks + [_unheard_after(c, stage, c.edges.watermark("client", stage)) for stage in lost_ears])


def frames_position(c: Conversation, resume: Resume) -> int:
    """Camera frames that every stage has that sees; a client that sends again goes on behind it."""
    sees = c.graph.readers("camera", "image")
    marks = [stage.edges.get("camera", 0) for stage in resume.attached if stage.stage in sees]
    if not marks:
        return c.input.frames
    return min(marks) if resume.resends else max(marks)


def is_rolled_back(c: Conversation, resume: Resume) -> bool:
    """The client or a stage knows more than was committed: the store forgot it, or was away. Asked before `resumed`."""
    return resume.known_seq > c.state.seq or any(_is_ahead(c, stage) for stage in resume.attached)


def _is_ahead(c: Conversation, stage: StageAttached) -> bool:
    if stage.command_number > c.outbox.issued(stage.stage) or stage.epoch > c.fence.epoch:
        return True
    return stage.first_kept > c.edges.acknowledged(stage.stage) + 1


def _begin_above(c: Conversation, resume: Resume) -> None:
    """Say so above every number that the client knows, and end what is open, in an epoch that is new to all."""
    forgotten = max(0, resume.known_seq - c.state.seq)
    c.state.seq += forgotten
    c.state.items, c.responses.count = c.state.items + forgotten, c.responses.count + forgotten  # no id that was told means anything else
    c.emit(events.ResyncRequired("rolled_back", c.state.seq + 1))
    for stage in resume.attached:
        if (gone := stage.first_kept - 1) > c.edges.acknowledged(stage.stage):
            c.state.consumed[stage.stage] = max(gone, c.state.consumed.get(stage.stage, 0))
            c.edges.forget_up_to(stage.stage, gone)
            c.edges.begin_anew(stage.stage, gone)
            if stage.stage == c.graph.model_stage:
                c.unit_log.begin_behind(unit_log.point(c))
    highest = max((stage.epoch for stage in resume.attached), default=0)
    was_cut, c.fence.epoch = highest > c.fence.epoch, max(highest, c.fence.epoch)
    if c.responses.live is None:
        speaking.advance(c, "recovered")
    elif was_cut:
        speaking.interrupt(c, "turn_detected")
    else:
        speaking.fail(c, "rolled_back", "")


def lost(c: Conversation, loss: StageLost, heard_ms: int | None = None) -> None:
    """Only this stage is placed anew; a response that needed it ends as failed. `heard_ms`: see `native.lost`."""
    stage = loss.stage
    if stage not in c.state.lost:
        c.state.lost.append(stage)
    c.leaving.discard(stage)
    if stage in c.graph.response_stages:
        speaking.fail(c, "stage_lost", stage)
    client.update_interrupted(c, stage)
    resume_after = rebuild(c, stage, heard_ms)
    if stage == c.graph.audio_stage:
        c.held.clear()
        c.playback.begin_anew()
    c.effects.append(Replace(stage, resume_after))


def rebuild(c: Conversation, stage: str, heard_ms: int | None = None) -> dict[str, int]:
    """Ready for a stage that begins anew elsewhere. Answers the position of each edge up to which it needs nothing."""
    heard = c.edges.watermark("client", stage)
    if stage == c.graph.model_stage:
        native.lost(c, heard_ms)
    had = c.edges.give_up(stage)
    resume_after = {source: had.get(source, 0) for source in c.graph.edges(stage)}
    last_order = c.outbox.forget(stage)
    if "core" in resume_after:
        resume_after["core"] = last_order
    if "client" in resume_after:
        resume_after["client"] = _unheard_after(c, stage, heard)
        c.edges.replay("client", stage, resume_after["client"], c.input.position)
    base = max(c.received.get(stage, 0), c.state.consumed.get(stage, 0), c.edges.known(stage))
    c.edges.forget_above(stage, c.received.get(stage, 0))
    c.state.bases[stage] = c.state.consumed[stage] = base
    c.edges.begin_anew(stage, base)
    return resume_after


def _unheard_after(c: Conversation, stage: str, heard: int) -> int:
    """Position of the client's audio after which the stage has to hear again: the open turn, what it had not heard when it fell silent (it
    had up to `heard`), and what a recognizer still owes."""
    end, rate = c.input.end_ms(c.config.input_format), c.config.input_format.rate
    silent_since = end - max(0, c.input.position - heard) * 1000 // rate
    starts = [silent_since - (c.graph.native.reheard_ms if stage == c.graph.model_stage else REHEARD_MS)]
    if stage == c.graph.decision_stage:
        starts = [min(end, max(*starts, c.input.buffer_start_ms))]  # turns end where the client ended them
    if c.input.open_item is not None:
        starts.append(c.input.open_start_ms)
    if c.config.turn_detection is None:
        starts.append(c.input.buffer_start_ms)
    if stage == c.graph.transcript_stage:
        starts += [hearing.start_ms for hearing in c.dialog.hearing.values()]
    return max(0, c.input.position - (end - max(0, min(starts))) * rate // 1000)


def placed(c: Conversation, placement: StagePlaced) -> None:
    """The stage is there again, opened with the configuration of now: what it still owes is asked for again."""
    if placement.stage not in c.state.lost:
        return
    c.state.lost.remove(placement.stage)
    c.effects.append(Vacate(placement.stage))
    if placement.stage == c.graph.audio_stage:
        if not placement.back:
            c.playback.begin_anew()
        c.playback.granted_ms = 0  # what was granted meanwhile reached nobody
    if placement.stage == c.graph.model_stage:
        native.placed(c, back=placement.back)
    client.release_held(c)
    if placement.stage == c.graph.transcript_stage:
        for hearing in c.dialog.hearing.values():
            hearing.deadline = c.now + c.limits.transcript_timeout_ms
            generation = c.input.generations.get(placement.stage, 0)
            c.order(placement.stage, CommitOrder(hearing.item_id, hearing.start_ms, hearing.end_ms, generation), append=True)


def gone(c: Conversation, loss: StageGone) -> None:
    """Without a stage the conversation cannot go on: it ends, by type."""
    speaking.fail(c, "stage_lost", loss.stage)
    c.refuse(Refusal("stage_lost", stage=loss.stage), None)
    c.close(1011, "stage_lost")
