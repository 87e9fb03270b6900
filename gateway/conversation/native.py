"""A native model's conversation: it hears every unit of input and decides itself when it speaks. Its turns become responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from . import early_close, events, overlap, speaking, unit_log
from .commands import DecisionOut, MarkOut, StageChunk, StageUnit, TextOut
from .early_close import Closing
from .effects import CancelOrder, ContinueOrder
from .overlap import Over
from .recap import Recap, recap
from .response import Asked, Live
from .unit_log import Point

if TYPE_CHECKING:
    from .session import Conversation


class Native(Struct, array_like=True):
    """Times of the input timeline end in _ms; `submitted_at` and `heard_at` are milliseconds of the session."""

    turn: int = 0
    """Of the model, in progress; 0: it listens."""
    boundary_ms: int = 0
    """Where the open unit ends, if input fills it."""
    submitted_at: int = 0
    """When the unit before was complete."""
    heard_at: int = 0
    """When input came last."""
    units: int = 0
    """Done so far, at all placements."""
    base: int = 0
    """Of them, at earlier placements."""
    frames: int = 0
    """In the open unit."""
    epoch: int = 0
    """In which a turn of the model began last."""
    over: Over | None = None
    onset_ms: int = 0
    """Input that the detector had heard when it told that the user speaks."""
    awaited: bool = False
    """A unit was submitted, and no receipt came since."""
    closing: Closing | None = None
    """The latest pause of the user's, where units are closed early."""
    closed_until_ms: int = 0
    """Where the unit that was closed early last would have ended."""
    told: int = 0
    """Units whose decision the client knows: one of them may be without a receipt for ever."""


class Stayed(Struct, frozen=True):
    """What holds again if the model could not leave where it was."""

    base: int
    recap: Recap | None


class Memory(Struct):
    """What is kept beside it and seldom changes."""

    recap: Recap | None = None
    """Of the conversation before the model was placed anew."""
    frame_events: dict[int, str | None] = {}
    """The client's event that brought a frame, by position: the newest of them."""
    stayed: Stayed | None = None
    """Of a model that is being placed anew."""


def present_epoch(c: Conversation) -> None:
    """Told to a model at its new place: what it makes on its own carries the epoch that it knows."""
    if c.graph.model_stage:
        c.order(c.graph.model_stage, CancelOrder(c.fence.epoch - 1, c.fence.epoch, "placed"), append=False)


def decided(c: Conversation, chunk: StageChunk, decision: DecisionOut) -> None:
    """A decision of the model about one unit, or about the end of its turn. A turn that was cut off is nobody's any more."""
    live: Live | None = None
    if decision.kind in ("speak", "turn_end"):
        if not c.fence.admits(chunk.epoch) or not chunk.response_id:
            return
        live = c.responses.of(chunk) if decision.kind == "turn_end" else _speaks(c, chunk, decision)
        if decision.kind == "turn_end":
            c.native.turn = 0
        elif live is None:
            return
    elif decision.kind != "listen":
        return
    if decision.kind != "turn_end":
        _take_bearings(c, decision.decided_at_ms)
        early_close.decided(c, decision)
    if c.memory.recap is not None and decision.decided_at_ms <= c.memory.recap.heard_until_ms:
        c.native.base -= decision.kind != "turn_end"  # only heard again: it was counted before
        return
    response_id = live.id if live is not None else None
    c.native.told = max(c.native.told, c.native.units + 1)
    c.emit(events.UnitDecided(c.native.units, decision.kind, decision.t_ms, decision.decided_at_ms, response_id))


def _speaks(c: Conversation, chunk: StageChunk, decision: DecisionOut) -> Live | None:
    """The response of the turn, begun with its first unit. None: the turn is not wanted, and the model is told to listen."""
    live = c.responses.of(chunk)
    if live is None:
        cannot = any(stage in c.state.lost for stage in c.graph.response_stages)
        if cannot or overlap.unheard(c, decision):
            _stop(c, "stage_lost" if cannot else "turn_detected")
            return None
        live = _begin(c, chunk, decision.decided_at_ms)
    live.units += 1
    c.native.turn = chunk.turn
    return live


def _stop(c: Conversation, reason: str) -> None:
    if c.responses.live is None:
        speaking.advance(c, reason)
    else:
        speaking.mute(c)
        speaking.interrupt(c, "turn_detected")


def _begin(c: Conversation, chunk: StageChunk, heard_ms: int) -> Live:
    c.responses.count += 1
    c.native.epoch = chunk.epoch
    live = Live(
        id=c.make_id("resp", c.responses.count),
        item_id=c.new_item_id("a"),
        epoch=chunk.epoch,
        turn=chunk.turn,
        modality=c.config.output_modalities[0],
        asked=Asked(voice=c.config.voice),
        prompted=True,
        progress_at=c.now,
        made_as=chunk.response_id,
        begun_ms=heard_ms,
    )
    if c.responses.live is None:
        speaking.announce(c, live)
    else:
        c.responses.coming.append(live)
    return live


def text(c: Conversation, live: Live, output: TextOut) -> None:
    """Text is spoken in the second of sound that its unit makes."""
    if live is c.responses.live:
        speaking.text(c, live, output)
    else:
        live.text += output.text
    mark = MarkOut(len(live.text), live.units * c.graph.native.unit_ms, True)
    if live.marks and live.marks[-1].audio_ms == mark.audio_ms:
        live.marks.pop()
    live.marks.append(mark)


def unit_done(c: Conversation, receipt: StageUnit) -> None:
    """One that came again after a takeover changes nothing."""
    units = c.native.base + receipt.unit + 1
    if receipt.stage == c.graph.model_stage and units > c.native.units:
        c.native.units, c.native.awaited = units, False
        unit_log.unit_done(c)


# the clock of units


def heard(c: Conversation) -> None:
    """Input came: the units that it completes are submitted."""
    native, settings, end_ms = c.native, c.graph.native, c.input.end_ms(c.config.input_format)
    native.heard_at = c.now
    native.boundary_ms = native.boundary_ms or settings.first_ms
    if end_ms >= native.boundary_ms:
        native.boundary_ms += ((end_ms - native.boundary_ms) // settings.unit_ms + 1) * settings.unit_ms
        native.submitted_at, native.frames, native.awaited = c.now, 0, True


def heard_until(c: Conversation) -> int:
    """Where the newest unit ends that the model is known to have heard."""
    if (newest := next(reversed(c.unit_log.notes.values()), None)) is not None:
        return newest.end_ms
    if c.graph.model_stage in c.state.lost and c.memory.recap is not None:
        return c.memory.recap.heard_until_ms
    return max(0, c.native.boundary_ms - c.graph.native.unit_ms)


def cleared(c: Conversation) -> None:
    """The open unit begins anew."""
    c.native.boundary_ms, c.native.frames, c.native.over = c.input.end_ms(c.config.input_format) + c.graph.native.unit_ms, 0, None
    c.native.closed_until_ms, c.native.awaited = 0, False


def _take_bearings(c: Conversation, unit_end_ms: int) -> None:
    """The model says where a unit ended: later ones are counted from there."""
    unit_ms, end_ms = c.graph.native.unit_ms, c.input.end_ms(c.config.input_format)
    c.native.boundary_ms = unit_end_ms + (max(0, end_ms - unit_end_ms) // unit_ms + 1) * unit_ms


def continue_at(c: Conversation) -> int | None:
    """When the open unit is to be closed with silence: a period after the one before, unless input flows."""
    native, settings = c.native, c.graph.native
    if not native.turn or not settings.continue_silence or c.graph.model_stage in c.state.lost:
        return None
    return max(native.submitted_at + settings.unit_ms, native.heard_at + settings.continuation_slack_ms)


def continue_in_silence(c: Conversation) -> None:
    """The model goes on while nobody says anything. After a long pause one unit is asked for, and the period begins anew."""
    at, unit_ms = continue_at(c), c.graph.native.unit_ms
    if at is None or at > c.now:
        return
    end_ms = c.input.end_ms(c.config.input_format) + unit_ms
    c.native.submitted_at = at if c.now - at < unit_ms else c.now
    c.native.boundary_ms, c.native.frames, c.native.awaited = end_ms, 0, True
    stage = c.graph.model_stage
    c.order(stage, ContinueOrder(end_ms, c.fence.epoch, c.native.turn, c.input.generations.get(stage, 0)), append=True)


# losses


def lost(c: Conversation, heard_ms: int | None = None) -> None:
    """The model is placed anew: it is told what was said and what it noted since, and hears the latest sound again without answering to it.

    It counts its turns from 1 again, so they must not be of an epoch that has some. `heard_ms`: up to where it heard what comes again;
    None: to where the input is now.
    """
    if c.native.epoch == c.fence.epoch:
        speaking.advance(c, "stage_lost")
    c.memory.stayed = Stayed(c.native.base, c.memory.recap)
    c.native.base = c.native.units = max(c.native.units, c.native.told)
    c.native.closing, c.native.closed_until_ms, c.native.awaited = None, 0, False
    end_ms = c.input.end_ms(c.config.input_format) if heard_ms is None else heard_ms
    told = c.unit_log.told() if unit_log.span_ms(c.graph) else ()
    until = (c.unit_log.reached or Point()) if told else None
    c.memory.recap = Recap(recap(c.history, c.graph.native.recap_chars, until), end_ms, told)


def placed(c: Conversation, *, back: bool) -> None:
    """It is there again. `back`: where it was, and remembers all that it did there."""
    if back and c.memory.stayed is not None:
        c.native.base, c.memory.recap = c.memory.stayed.base, c.memory.stayed.recap
    c.memory.stayed = None
    present_epoch(c)
