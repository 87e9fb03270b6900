"""What the scripted native model notes of its units, and what it knows again from such notes."""

from __future__ import annotations

import binascii

import msgspec
from parley_stage.v1 import stage_pb2

from stage_kit.engine import InvalidConfig
from stage_kit.scripted.script import reply


class Decided(msgspec.Struct, frozen=True, array_like=True):
    """A unit of the model: its number, what it did (a letter of the script), and which words it said: `said` of its turn."""

    number: int
    act: str
    turn: int = 0
    said: int = 0
    words: int = 0

    def text(self, session_id: str) -> str:
        """The words of a unit that spoke."""
        return "".join(reply(f"{session_id}/{self.turn}/{self.said}", self.words))


class Logged(msgspec.Struct, frozen=True, array_like=True):
    """A note as the model is told of it."""

    start_ms: int
    end_ms: int
    data: bytes

    @property
    def decided(self) -> Decided:
        """Raises msgspec.MsgspecError: it is not of this model."""
        return msgspec.msgpack.decode(self.data, type=Decided)


def note(start_ms: int, end_ms: int, decided: Decided) -> stage_pb2.Payload:
    """Of the real input in the unit."""
    return stage_pb2.Payload(unit_note=stage_pb2.UnitNote(start_ms=start_ms, end_ms=end_ms, data=msgspec.msgpack.encode(decided)))


def read_log(log: tuple[str, ...]) -> list[tuple[Logged, Decided]]:
    """Raises InvalidConfig."""
    read = []
    for at, text in enumerate(log):
        try:
            logged = msgspec.msgpack.decode(binascii.a2b_base64(text, strict_mode=True), type=Logged)
            read.append((logged, logged.decided))
        except (ValueError, msgspec.MsgspecError):
            raise InvalidConfig(f"unit_log[{at}]", "not a note of this model") from None
    return read


def recital(session_id: str, previous: str, log: tuple[str, ...]) -> str:
    """What was said before the log, and then, behind a stroke, the words in it."""
    words = " ".join(decided.text(session_id) for _, decided in read_log(log) if decided.act != "l")
    return " ".join(part for part in (previous, "/" if log else "", words) if part)
