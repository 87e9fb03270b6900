"""How a spoken conversation ended."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Kind(StrEnum):
    ANSWERED = "answered"
    """Speech came back, and the answer ended."""
    STILL_SPEAKING = "still_speaking"
    """Speech came back, and more of it came when the time was over: a model may talk on for as long as it likes."""
    NO_SPEECH = "no_speech"
    """Nothing failed, and nobody spoke in time."""
    FAILED = "failed"
    """An error, an answer without sound, or one that broke off."""


EXIT_CODES = {Kind.ANSWERED: 0, Kind.STILL_SPEAKING: 0, Kind.NO_SPEECH: 3, Kind.FAILED: 1}
EXIT_HELP = "Exit code 0: speech came back (its answer may go on); 3: nobody spoke in time; 1: something failed"


class Ending(Struct, frozen=True):
    """words: what happened, in one line."""

    kind: Kind
    words: str

    @property
    def spoke(self) -> bool:
        return self.exit_code == 0

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.kind]
