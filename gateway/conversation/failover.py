"""What the core does when it is restored elsewhere, and when a stage is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import client, speaking
from .commands import Resume, StageGone, StageLost, StagePlaced
from .effects import CommitOrder, Replace
from .errors import Refusal

if TYPE_CHECKING:
    from .session import Conversation

REHEARD_MS = 500
"""Of the latest sound, for a detector that is placed anew while nobody speaks."""


def resumed(c: Conversation, resume: Resume) -> None:
    """Reconcile with what the stages have: the highest epoch holds, input goes on where all have it, orders not obeyed are given again."""
    for stage in resume.attached:
        c.edges.accepted(stage.stage, stage.edges)
        c.outbox.obeyed(stage.stage, stage.command_number)
    position = c.edges.rewind("client", resume.lost)
    if position is not None:
        c.input.rewind(position)
    c.playback.granted_ms = 0
    c.effects.extend(order for order in c.outbox.unanswered() if order.stage not in resume.lost)
    highest = max((stage.epoch for stage in resume.attached), default=0)
    if highest > c.fence.epoch:
        c.fence.epoch = highest - 1
        speaking.interrupt(c, "turn_detected")
    for name in (*c.state.lost, *resume.lost):
        lost(c, StageLost(name, "not there at the takeover"))


def lost(c: Conversation, loss: StageLost) -> None:
    """Only this stage is placed anew; a response that needed it ends as failed."""
    stage = loss.stage
    if stage not in c.state.lost:
        c.state.lost.append(stage)
    if stage in c.graph.response_stages:
        speaking.fail(c, "stage_lost", stage)
    client.update_interrupted(c, stage)
    had = c.edges.give_up(stage)
    resume_after = {source: had.get(source, 0) for source in c.graph.edges(stage)}
    if "core" in resume_after:
        resume_after["core"] = c.outbox.forget(stage)
    if "client" in resume_after:
        resume_after["client"] = _unheard_after(c, stage)
        c.edges.replay("client", stage, resume_after["client"], c.input.position)
    base = c.received.get(stage, c.state.consumed.get(stage, 0))
    c.state.bases[stage] = c.state.consumed[stage] = base
    c.edges.begin_anew(stage, base)
    if stage == c.graph.audio_stage:
        c.held.clear()
        c.playback.begin_anew()
    c.effects.append(Replace(stage, resume_after))


def _unheard_after(c: Conversation, stage: str) -> int:
    """Position of the client's audio after which the stage has to hear again: the open turn, and what a recognizer still owes."""
    end = c.input.end_ms(c.config.input_format)
    starts = [end - REHEARD_MS]
    if c.input.open_item is not None:
        starts.append(c.input.open_start_ms)
    if c.config.turn_detection is None:
        starts.append(c.input.buffer_start_ms)
    if stage == c.graph.transcript_stage:
        starts += [hearing.start_ms for hearing in c.dialog.hearing.values()]
    return max(0, c.input.position - (end - max(0, min(starts))) * c.config.input_format.rate // 1000)


def placed(c: Conversation, placement: StagePlaced) -> None:
    """The stage is there again, opened with the configuration of now: what it still owes is asked for again."""
    if placement.stage not in c.state.lost:
        return
    c.state.lost.remove(placement.stage)
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
