"""The fence table: who may command a session at a stage, and which work is still wanted. Pure: no clock, no I/O."""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum

import msgspec
from parley_stage.v1 import stage_pb2

INPUT = stage_pb2.LANE_INPUT
RESPONSE = stage_pb2.LANE_RESPONSE


class Authority(msgspec.Struct, frozen=True):
    """Who commands: immutable, equal by value."""

    session_id: str
    placement: int
    attachment: int
    holder_id: str

    @classmethod
    def of(cls, authority: stage_pb2.Authority) -> Authority:
        """The authority of a message."""
        return cls(authority.session_id, authority.placement, authority.attachment, authority.holder_id)


class Ruling(Enum):
    """What the table says to a command."""

    OBEY = "obey"
    DUPLICATE = "duplicate"
    DISCARD = "discard"
    STALE = "stale"
    UNKNOWN = "unknown"
    NOT_ATTACHED = "not_attached"
    NO_NEXT = "no_next"


class Fence(msgspec.Struct):
    """State of one (session, stage, placement). Each method is one decision; a refused command changes nothing."""

    placement: int
    attachment: int
    holder_id: str
    epoch: int = 0
    input_generation: int = 0
    command_number: int = 0
    owed: set[int] = msgspec.field(default_factory=set)
    """Numbers of appends that were turned back (gap, limit): not obeyed yet, however far the numbers went since."""

    def attach(self, who: Authority) -> Ruling:
        """Open and Attach alone raise the attachment."""
        if who.placement != self.placement or who.attachment < self.attachment:
            return Ruling.STALE
        if who.attachment == self.attachment and who.holder_id != self.holder_id:
            return Ruling.STALE
        self.attachment, self.holder_id = who.attachment, who.holder_id
        return Ruling.OBEY

    def command(self, who: Authority) -> Ruling:
        """A command needs the stage's attachment; a higher one must attach first."""
        if who.placement != self.placement or who.attachment < self.attachment:
            return Ruling.STALE
        if who.attachment > self.attachment:
            return Ruling.NOT_ATTACHED
        return Ruling.OBEY if who.holder_id == self.holder_id else Ruling.STALE

    def release(self, who: Authority) -> Ruling:
        """A release needs no attach: the highest placement or attachment known to Redis may free what is held below it."""
        if who.placement != self.placement:
            return Ruling.STALE if who.placement < self.placement else Ruling.OBEY
        if who.attachment != self.attachment:
            return Ruling.STALE if who.attachment < self.attachment else Ruling.OBEY
        return Ruling.OBEY if who.holder_id == self.holder_id else Ruling.STALE

    def number(self, number: int) -> Ruling:
        """Each core command is obeyed once; 0 is relayed data."""
        if number == 0 or number > self.command_number or number in self.owed:
            return Ruling.OBEY
        return Ruling.DUPLICATE

    def obeyed(self, number: int) -> None:
        """The command with this number was carried out."""
        self.owed.discard(number)
        self.command_number = max(self.command_number, number)

    def turned_back(self, number: int) -> None:
        """The append with this number was not taken in and will come again."""
        if number:
            self.owed.add(number)

    def append(self, lane: int, epoch: int, input_generation: int) -> Ruling:
        """DISCARD: counted as accepted, then forgotten. Input is fenced by its generation only, the response lane by epoch only."""
        if lane == INPUT:
            return Ruling.DISCARD if input_generation < self.input_generation else Ruling.OBEY
        return Ruling.DISCARD if epoch < self.epoch else Ruling.OBEY

    def cancel(self, cancelled: int, following: int) -> Ruling:
        """OBEY advances to the following epoch; DUPLICATE is a retry or a late cancel: it may clean up, it never moves the epoch."""
        if following <= cancelled:
            return Ruling.NO_NEXT
        if following <= self.epoch:
            return Ruling.DUPLICATE
        self.epoch = following
        return Ruling.OBEY

    def raise_epoch(self, epoch: int) -> bool:
        """True when the epoch rose."""
        if epoch <= self.epoch:
            return False
        self.epoch = epoch
        return True

    def raise_generation(self, generation: int) -> bool:
        """True when the input generation rose: uncommitted input is to be forgotten."""
        if generation <= self.input_generation:
            return False
        self.input_generation = generation
        return True


class FenceTable:
    """All fences of a stage by session, and the placements that ended: an ended placement never opens again."""

    def __init__(self, remembered: int) -> None:
        self._fences: dict[str, Fence] = {}
        self._ended: OrderedDict[str, int] = OrderedDict()
        self._remembered = remembered

    def __len__(self) -> int:
        return len(self._fences)

    def get(self, session_id: str) -> Fence | None:
        """The live fence of a session."""
        return self._fences.get(session_id)

    def open(self, who: Authority) -> tuple[Ruling, Fence | None]:
        """OBEY with a new fence (a lower placement, if held, is superseded); DUPLICATE with the one that is already there."""
        fence = self._fences.get(who.session_id)
        if fence is not None and who.placement == fence.placement:
            ruling = fence.attach(who)
            return (Ruling.DUPLICATE, fence) if ruling is Ruling.OBEY else (ruling, None)
        if fence is not None and who.placement < fence.placement:
            return Ruling.STALE, None
        if who.placement <= self._ended.get(who.session_id, -1):
            return Ruling.STALE, None
        fresh = Fence(who.placement, who.attachment, who.holder_id)
        self._fences[who.session_id] = fresh
        return Ruling.OBEY, fresh

    def attach(self, who: Authority) -> tuple[Ruling, Fence | None]:
        """Attach to what is held."""
        fence = self._fences.get(who.session_id)
        if fence is None:
            stale = who.placement < self._ended.get(who.session_id, -1)
            return (Ruling.STALE if stale else Ruling.UNKNOWN), None
        ruling = fence.attach(who)
        return ruling, fence if ruling is Ruling.OBEY else None

    def end(self, session_id: str, placement: int) -> None:
        """This placement is over: late messages of it reach nobody, whoever opens the id again."""
        fence = self._fences.get(session_id)
        if fence is not None and fence.placement <= placement:
            del self._fences[session_id]
        self._ended[session_id] = max(placement, self._ended.pop(session_id, -1))
        while len(self._ended) > self._remembered:
            self._ended.popitem(last=False)

    def forget(self, session_id: str, placement: int) -> None:
        """A failed open leaves nothing, so the same authority may try again."""
        fence = self._fences.get(session_id)
        if fence is not None and fence.placement == placement:
            del self._fences[session_id]
