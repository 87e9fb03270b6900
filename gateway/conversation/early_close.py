"""The user pauses: a native model's open unit is closed with silence at once, and silence that follows is passed over for it.

The detector's pause is the first that is known of it: it tells of the end of the voice some 130 ms later, its end of turn only after half a
second and more. A pause that is over before the unit was closed takes it back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from . import overlap, speaking
from .commands import DecisionOut
from .effects import CloseUnitOrder, SkipSilenceOrder

if TYPE_CHECKING:
    from .session import Conversation

ONSET_MS = 150
"""Speech is weak at first, and known a little later: what came so shortly before the detector told of speech, or of none yet, is not passed
over. With Silero voice begins at most 90 ms before, a click that precedes it up to 250."""


class Closing(Struct, array_like=True):
    """A pause, and the unit that it closes. Times of the input timeline; 0: not yet."""

    voice_end_ms: int
    silent_ms: int
    """The detector heard nobody up to here."""
    ordered_ms: int = 0
    """Input when the unit was to be closed, or when nothing was left to be closed for this pause."""
    until_ms: int = 0
    """Where the unit would have ended. 0 again, when nothing more is to be passed over."""
    ended_ms: int = 0
    """Where its real input ended; 0 for good, where real input completed it."""


def paused(c: Conversation, decision: DecisionOut) -> None:
    """A pause, or the end of the turn: nobody spoke from t_ms on."""
    if c.graph.native.early_close_ms is None or not c.graph.model_stage:
        return
    closing = c.native.closing
    if closing is None or closing.voice_end_ms != decision.t_ms:
        c.native.closing = Closing(decision.t_ms, decision.decided_at_ms)
    else:
        closing.silent_ms = max(closing.silent_ms, decision.decided_at_ms)
        _skip_silence(c, closing)


def resumed(c: Conversation, decision: DecisionOut) -> None:
    """The user goes on since t_ms. A reply to the unit that was closed in this pause had not heard it: that is an interruption."""
    closing, c.native.closing = c.native.closing, None
    if closing is None or not (closing.until_ms or closing.ended_ms):
        return
    closing.silent_ms = max(closing.silent_ms, decision.t_ms)
    _skip_silence(c, closing)
    live, item_id = c.responses.live, c.input.open_item
    if live is None or item_id is None:
        c.native.onset_ms = decision.decided_at_ms
    elif live.begun_ms == closing.ended_ms and overlap.spoke_up(c, item_id, decision.decided_at_ms):
        speaking.mute(c)
        speaking.interrupt(c, "turn_detected")


def settle(c: Conversation) -> None:
    """Has the open unit closed when it is time: once within what would have been a unit, and while the model neither speaks nor has one to
    decide."""
    closing, native, settings = c.native.closing, c.native, c.graph.native
    if closing is None or closing.ordered_ms or settings.early_close_ms is None or c.graph.model_stage in c.state.lost:
        return
    at, end_ms = closing.voice_end_ms + settings.early_close_ms, c.input.end_ms(c.config.input_format)
    begun_ms = native.boundary_ms - settings.unit_ms
    if begun_ms >= at:
        closing.ordered_ms = end_ms  # a whole unit heard as much of the silence
    elif end_ms >= max(at, native.closed_until_ms) and end_ms > begun_ms and not native.turn and not native.awaited:
        closing.ordered_ms, closing.until_ms = end_ms, native.boundary_ms
        native.closed_until_ms, native.boundary_ms = native.boundary_ms, end_ms + settings.unit_ms
        native.submitted_at, native.frames, native.awaited = c.now, 0, True
        _order(c, CloseUnitOrder(native.boundary_ms, _generation(c)))


def decided(c: Conversation, decision: DecisionOut) -> None:
    """The model says where a unit ended, and what it does. While it speaks nothing is passed over: its sound would have a hole."""
    closing = c.native.closing
    if closing is None or not closing.until_ms or closing.ended_ms or decision.decided_at_ms < closing.voice_end_ms:
        return
    if decision.decided_at_ms < closing.until_ms:
        closing.ended_ms = decision.decided_at_ms
    if closing.ended_ms and decision.kind == "listen":
        _skip_silence(c, closing)
    else:
        closing.until_ms = 0


def _skip_silence(c: Conversation, closing: Closing) -> None:
    """As much as the unit was filled with, as far as it is known to be silence, while the next unit is open."""
    start_ms, end_ms = closing.ended_ms, min(closing.until_ms, closing.silent_ms - ONSET_MS)
    if not start_ms or end_ms <= start_ms:
        return
    closing.until_ms = 0
    if c.input.end_ms(c.config.input_format) < start_ms + c.graph.native.unit_ms:
        c.native.boundary_ms += end_ms - start_ms
        _order(c, SkipSilenceOrder(start_ms, end_ms, _generation(c)))


def _generation(c: Conversation) -> int:
    return c.input.generations.get(c.graph.model_stage, 0)


def _order(c: Conversation, order: CloseUnitOrder | SkipSilenceOrder) -> None:
    c.order(c.graph.model_stage, order, append=True)
