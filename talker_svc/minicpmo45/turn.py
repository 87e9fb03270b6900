"""One model turn of a session: the units that wait, the one that is being spoken, and the tokens that are held of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from minicpmo45.config import CODE_RATE
from stage_kit import Label
from talker_svc.minicpmo45.sampler import UnitRule
from talker_svc.minicpmo45.settings import MiniCpmTalkerSettings
from talker_svc.minicpmo45.thoughts import Words
from torch_kit.page_table import Appended, PageTable

PIECE = CODE_RATE
"""Codes of one output, a second of sound."""
_NUMBER_BITS = 32


@dataclass(slots=True)
class Unit:
    """A unit that is being spoken."""

    ending: bool
    most: int
    """Codes at which it ends without an end code."""
    made: int = 0
    """Codes so far."""
    drawn: int = 0
    """Of them and the end code."""
    asked: int = 0
    """Codes that the device has drawn or is to draw."""
    codes: list[int] = field(default_factory=list)
    """Of them, those not sent yet."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Codes to send. `last`: the turn's final ones."""

    codes: list[int]
    last: bool = False
    cut_short: bool = False
    """The bound was reached before the end code."""


class Turn:
    """Keeps keys and values over all units of the turn, at positions that go on; the table is cleared by whoever ends the turn.

    A unit in the middle of a turn has exactly 25 codes. The first may be shorter, and so may the last, which may be longer, too: its tail
    is sent in pieces of 25 until the end code or `tail_codes`. The 25th code of a unit is fed together with the next unit's condition:
    where the reference draws a 26th code and drops it, nothing is drawn, with the same keys, values and codes.
    """

    def __init__(self, label: Label, settings: MiniCpmTalkerSettings) -> None:
        self.label = label
        self.waiting: deque[Words] = deque()
        self.complete = False
        """No more units will come."""
        self.dropped = False
        """Nobody waits for its codes any more."""
        self.unit: Unit | None = None
        self.units = 0
        """Units begun."""
        self.tokens = 0
        self.codes = 0
        self._settings = settings
        self._unfed = False
        self._held: deque[int] = deque()

    @property
    def over(self) -> bool:
        """Everything was spoken."""
        return self.complete and not self.waiting and self.unit is None

    @property
    def busy(self) -> bool:
        """There is something to do."""
        return self.unit is not None or bool(self.waiting) or self.complete

    @property
    def opening(self) -> bool:
        """Its first unit is to be spoken, or being spoken."""
        return self.units == 0 or (self.units == 1 and self.unit is not None)

    @property
    def left(self) -> int:
        """Most codes that can still be asked for the unit that is being spoken, or for the next one."""
        return self.unit.most - self.unit.asked if self.unit is not None else self._most()

    @property
    def speaks(self) -> bool:
        """There are codes to ask for."""
        return self.unit.asked < self.unit.most if self.unit is not None else bool(self.waiting)

    @property
    def feeds_code(self) -> bool:
        """The next input begins with the code drawn last."""
        return self.unit is not None or self._unfed

    def place(self, table: PageTable) -> Appended:
        """Places for the next input, a code or the next unit's condition. Old units leave if they must. Undone by `table.rewind`."""
        if self.unit is not None:
            return table.append(1)
        condition = int(self._unfed) + len(self.waiting[0].token_ids) + 1
        self._make_room(table, condition + self._most())
        return table.append(condition)

    def rule(self) -> UnitRule:
        """What will hold for the next unit's codes."""
        ending = self._ends()
        floor = 0 if ending or self.units == 0 else PIECE
        return UnitRule((self.label.turn << _NUMBER_BITS) + self.units, floor, ending)

    def asks(self, count: int) -> Unit:
        """So many more codes are on their way; the unit that they belong to, which begins if its condition was placed last."""
        unit = self.unit or self._begin()
        unit.asked += count
        return unit

    def drew(self, codes: Sequence[int], end_code: int) -> list[Piece]:
        """Takes in what was drawn behind the inputs that were fed, each of which drew one; what is to be sent now.

        No more than were asked for, and none behind an end code. A full piece waits for the next code: it may be the last.
        """
        unit = self.unit or self._begin()
        self._held[-1] += len(codes) - (not unit.drawn)
        unit.drawn += len(codes)
        unit.asked = max(unit.asked, unit.drawn)
        ended = codes[-1] == end_code
        made = codes[:-1] if ended else codes
        unit.codes.extend(made)
        unit.made += len(made)
        self.codes += len(made)
        pieces = []
        while len(unit.codes) > PIECE:
            pieces.append(Piece(unit.codes[:PIECE]))
            unit.codes = unit.codes[PIECE:]
        return pieces + self._end(unit, unfed=not ended) if ended or unit.made == unit.most else pieces

    def _begin(self) -> Unit:
        """The condition that was placed last is fed."""
        self.unit = Unit(ending=self._ends(), most=self._most())
        words = self.waiting.popleft()
        # the code belongs to the unit before, unless that has left
        if self._unfed and self._held:
            self._held[-1] += 1
        self._held.append(len(words.token_ids) + 1 + (self._unfed and not self._held))
        self.complete = self.complete or words.turn_end
        self.units += 1
        self.tokens += len(words.token_ids)
        self._unfed = False
        return self.unit

    def _end(self, unit: Unit, *, unfed: bool) -> list[Piece]:
        self.unit = None
        self._unfed = unfed
        last = self.complete and not self.waiting
        return [Piece(unit.codes, last, cut_short=unit.ending and unfed)] if unit.codes or last else []

    def _ends(self) -> bool:
        """The turn ends with the unit that waits first."""
        return self.waiting[0].turn_end or (self.complete and len(self.waiting) == 1)

    def _most(self) -> int:
        return self._settings.tail_codes if self._ends() else PIECE

    def _make_room(self, table: PageTable, wanted: int) -> None:
        """Keeps the newest units once the turn would hold more than its positions."""
        if table.window_length + wanted <= self._settings.positions:
            return
        while self._held and (len(self._held) > self._settings.window_units or table.window_length + wanted > self._settings.positions):
            table.cut(table.window_start, table.window_start + self._held.popleft())
