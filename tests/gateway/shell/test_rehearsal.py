"""The client's latest audio, kept for a stage that is placed anew."""

from __future__ import annotations

from gateway.conversation.config import AudioFormat
from gateway.conversation.effects import InputAudio, Relay
from gateway.rehearsal import Rehearsal

PIECE = bytes(480)


def piece(position: int, stage: str = "asr") -> Relay:
    return Relay(stage, "client", position, position - 240, "input", 0, 0, "", InputAudio(PIECE, 240, AudioFormat(), position - 240))


def kept(rehearsal: Rehearsal) -> list[int]:
    return [relay.position for relay in rehearsal.after(0)]


def test_the_newest_is_kept_once_whichever_stage_it_went_to() -> None:
    rehearsal = Rehearsal(3 * len(PIECE))
    for position in (240, 480, 720, 960):
        rehearsal.keep(piece(position))
        rehearsal.keep(piece(position, "turn"))
    assert kept(rehearsal) == [480, 720, 960] and rehearsal.begins(0, 960) == 240


def test_what_was_cleared_is_not_kept_and_not_kept_again() -> None:
    rehearsal = Rehearsal(3 * len(PIECE))
    rehearsal.keep(piece(240))
    rehearsal.clear()
    rehearsal.keep(piece(240))
    assert kept(rehearsal) == []
    rehearsal.keep(piece(480))
    assert kept(rehearsal) == [480] and rehearsal.begins(480, 480) == 480
