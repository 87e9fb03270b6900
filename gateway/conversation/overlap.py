"""What happens when the user speaks while the model speaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from . import policy, speaking
from .commands import DecisionOut
from .config import Overlap
from .effects import InputAudio

if TYPE_CHECKING:
    from .session import Conversation


class Over(Struct, array_like=True):
    """Speech over the model's that may be an acknowledgement."""

    item_id: str
    deadline: int
    """Elapsed ms by which it must have ended; 0: it ended, and its words are awaited."""


def in_force(c: Conversation) -> Overlap:
    return c.config.overlap or Overlap()


def interrupts(c: Conversation) -> bool:
    """Whether speech of the user's cuts the reply off at all."""
    return policy.interrupts(c.config) and (not c.graph.model_stage or in_force(c).policy == "interrupt")


def spoke_up(c: Conversation, item_id: str, heard_ms: int) -> bool:
    """The user speaks: the detector knows it from the input up to heard_ms. True: that interrupts at once.

    Not so speech that the model had heard when it began; an acknowledgement, where words are known, is waited for.
    """
    live = c.responses.live
    c.native.over, c.native.onset_ms = None, heard_ms
    if not interrupts(c) or (live is not None and live.made_as and heard_ms <= live.begun_ms):
        return False
    if not (c.graph.model_stage and c.speaking and in_force(c).acknowledgements and c.graph.transcript_stage):
        return True
    c.native.over = Over(item_id, c.now + in_force(c).short_ack_ms)
    return False


def unheard(c: Conversation, decision: DecisionOut) -> bool:
    """The model begins to speak, and had not heard then that the user speaks."""
    return interrupts(c) and c.input.open_item is not None and decision.decided_at_ms < c.native.onset_ms


def word(c: Conversation, text: str) -> None:
    """What the user has said so far."""
    if c.native.over is not None and not _acknowledges(c, text, so_far=True):
        _cut_off(c)


def words(c: Conversation, item_id: str, text: str) -> None:
    """All that the user said; nothing, where no words came."""
    if c.native.over is None or c.native.over.item_id != item_id:
        return
    if _acknowledges(c, text):
        c.native.over = None
    else:
        _cut_off(c)


def deadline(c: Conversation) -> int | None:
    return c.native.over.deadline or None if c.native.over is not None else None


def due(c: Conversation) -> None:
    """Speech that goes on for so long is no acknowledgement."""
    at = deadline(c)
    if at is None or at > c.now or c.native.over is None:
        return
    if c.input.open_item == c.native.over.item_id:
        _cut_off(c)
    else:
        c.native.over.deadline = 0


def silenced(c: Conversation, audio: InputAudio) -> InputAudio:
    """What stages hear of the client's sound: nothing while the model speaks, if such speech is ignored."""
    if not c.graph.model_stage or in_force(c).policy != "ignore" or not c.speaking:
        return audio
    return msgspec.structs.replace(audio, data=audio.format.silence(audio.samples))


def _acknowledges(c: Conversation, text: str, *, so_far: bool = False) -> bool:
    """Whether it is nothing else. `so_far`: its last word may not be whole."""
    known = [each.casefold() for each in in_force(c).acknowledgements]
    said = "".join(char if char.isalnum() or char in "'-" else " " for char in text.casefold()).split()
    last = said.pop() if so_far and said else ""
    return all(each in known for each in said) and any(each.startswith(last) for each in known)


def _cut_off(c: Conversation) -> None:
    c.native.over = None
    if c.speaking:
        speaking.mute(c)
        speaking.interrupt(c, "turn_detected")
