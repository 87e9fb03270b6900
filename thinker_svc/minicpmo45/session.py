"""One session at the thinker: where it stands, which tokens it feeds next, and what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from msgspec.structs import replace
from torch import Tensor

from minicpmo45.tokens import Tokens
from stage_kit import Label
from thinker_svc.minicpmo45.camera import Camera, Frame
from thinker_svc.minicpmo45.configuration import SessionConfig
from thinker_svc.minicpmo45.gather import Gatherer, HeardUnit
from thinker_svc.minicpmo45.note import Note
from thinker_svc.minicpmo45.prefixes import Key
from thinker_svc.minicpmo45.template import AUDIO_ROWS
from thinker_svc.minicpmo45.vocabulary import TextStream, Vocabulary
from thinker_svc.minicpmo45.window import Leaving, UnitSpan, Window, after_unit, before_unit, newest
from torch_kit.page_table import Appended, PageTable, SharedPrefix
from torch_kit.pages import PoolExhausted

PREFIX_S = 0.5
"""A prefix may take so long, unless sound waits for it."""
LISTEN_S = 0.3
"""What listens is decided so long after its sound came."""
EARLY_S = 0.08
"""A later unit of a turn is due so long before the sound of the earlier ones ends."""


class Kind(Enum):
    """What a session feeds next."""

    HEAD = auto()
    """The prefix that it shares."""
    TAIL = auto()
    """The rest of its prefix."""
    FLUSH = auto()
    """The end of the unit before, since units leave behind it."""
    EARLY = auto()
    """Pictures of a unit whose sound is not complete."""
    UNIT = auto()
    """A unit."""
    TOKEN = auto()
    """The token that was decided last."""


class Overflow(MemoryError):
    """The session's pages do not hold what comes next."""


@dataclass(slots=True)
class OpenUnit:
    """The unit that is being fed."""

    number: int
    closing: tuple[int, ...] = ()
    """What ended the unit before and was fed with this one."""
    rows: int = 0
    """Fed of it so far, without `closing`."""
    pictures: int = 0
    heard: HeardUnit | None = None
    audio: Tensor | None = None
    """[10, hidden], once it was heard."""
    epoch: int = 0
    listens: bool = False
    tokens: list[int] = field(default_factory=list)
    """Decided and fed, but for the newest."""
    fed: list[int] = field(default_factory=list)
    """What stands behind its sound; when it is over, what ends it, too."""
    drawn: list[int] = field(default_factory=list)
    """What it entered in the history of the repetition penalty."""
    said: list[int] = field(default_factory=list)
    speaks: bool = False
    opened_turn: bool = False

    @property
    def decoding(self) -> bool:
        """A decided token is to be fed."""
        return bool(self.tokens)

    @property
    def noted(self) -> Note | None:
        """What is known of it, if it is a unit of the session's log."""
        return self.heard.noted if self.heard is not None else None


class Session:
    """`row`: of all slot-indexed tensors. `reserve`: pages that are set aside for it."""

    def __init__(
        self, row: int, table: PageTable, reserve: int, config: SessionConfig, vocabulary: Vocabulary, frames: int, now: float
    ) -> None:
        self.row = row
        self.table = table
        self.reserve = reserve
        self.config = config
        self.tokens: Tokens = vocabulary.tokens
        self.vocabulary = vocabulary
        self.gather = Gatherer()
        self.camera = Camera(frames)
        self.text = TextStream(vocabulary)
        self.opened_at = now
        self.epoch = 0
        self.failure: Exception | None = None
        self.number = 0
        """Of the next unit."""
        self.ended = 0
        """Units that are over here, those of the log included."""
        self.receipts = 0
        """Units that were told of."""
        self.unit: OpenUnit | None = None
        self.close: tuple[int, ...] = ()
        """What ends the last unit and is not fed yet."""
        self.turn = 0
        self.turn_label: Label | None = None
        """Of the model's turn in progress."""
        self.fed_open = False
        """The context ends within a turn: `<|turn_eos|>` was not fed."""
        self.force_listen = False
        self.sound_until = 0.0
        """When the sound of the turn so far ends, if it is heard as it is made."""
        self.shared: SharedPrefix | None = None
        self.prefix = Kind.HEAD
        """HEAD or TAIL: to be fed; UNIT: complete."""
        self.leaving = False
        """Units are to leave."""
        self.window = Window()
        self.begin_prefix()

    @property
    def prefix_key(self) -> Key:
        """What sessions that share a prefix have in common."""
        return self.config.instructions, self.config.voice.key if self.config.voice is not None else ""

    @property
    def begun(self) -> bool:
        """A unit was begun: instructions and voice hold."""
        return self.ended > 0 or self.unit is not None

    @property
    def free_pages(self) -> int:
        """Pages that are set aside for it and not used."""
        return self.reserve - self.table.page_count

    @property
    def room(self) -> int:
        """Tokens that fit behind the window."""
        table, page = self.table, self.table.pool.page
        last = page - table.stops[-1] if table.page_count > table.prefix_pages else 0
        return self.free_pages * page + last

    def begin_prefix(self) -> None:
        """The prefix is to be made, with the recap and the log that the configuration brings."""
        if not self.gather.begun:
            self.gather = Gatherer(self.config.unit_log)
        recap = self.vocabulary.encode(self.config.previous) if self.config.previous else []
        self.window = Window(newest(recap, self.config.window.previous_tokens))
        self.prefix = Kind.HEAD

    def next(self) -> Kind | None:
        """What it feeds next; None: it waits. `camera.settle` comes first."""
        if self.prefix is not Kind.UNIT:
            return self.prefix
        if self.unit is not None and self.unit.decoding:
            return Kind.TOKEN
        if self.leaving:
            return Kind.FLUSH
        heard = self.coming
        if heard is not None:
            return Kind.UNIT if all(frame.readable for frame in self.frames(heard)) else None
        # every session is asked before every step, and most have none
        if self.camera.frames and self.gather.begun and not self.gather.replays:
            frames = self.camera.before(self.gather.end_ms)
            if frames and frames[0].readable:
                return Kind.EARLY
        return None

    def urgency(self, now: float) -> float | None:
        """Monotonic second by which the next step should be done; None: it waits."""
        if self.failure is not None:
            return 0.0
        kind = self.next()
        if kind is None:
            return None
        heard = self.coming
        if heard is None:
            return self.opened_at + PREFIX_S if not self.begun else now + LISTEN_S
        if heard.noted is not None:
            return heard.complete_at + PREFIX_S
        if self.unit is not None and self.unit.opened_turn:
            return heard.complete_at
        if self.turn_label is not None:
            return self.sound_until - EARLY_S
        return heard.complete_at + LISTEN_S

    @property
    def coming(self) -> HeardUnit | None:
        """The sound of the unit that is being fed or comes next, if it is complete."""
        if self.unit is not None and self.unit.heard is not None:
            return self.unit.heard
        return self.gather.waiting[0] if self.gather.waiting else None

    @property
    def undecided(self) -> HeardUnit | None:
        """The sound of the unit that was begun, ahead of its step or in one that failed, and is not fed."""
        return None if self.unit is None or self.unit.decoding else self.unit.heard

    @property
    def shown(self) -> tuple[int, int, int]:
        """What frames that come now may belong to first: start and end of the unit, and how many it was fed already."""
        unit, heard = self.unit, self.undecided
        fed = 0 if unit is None or unit.decoding else unit.pictures
        if heard is not None and heard.noted is None:
            return heard.start_ms, heard.end_ms, fed
        start_ms, end_ms = self.gather.next_span
        return start_ms if self.gather.begun else 0, end_ms, fed

    def frames(self, heard: HeardUnit) -> list[Frame]:
        """The frames of a unit; one of the log has none."""
        return self.camera.before(heard.end_ms) if heard.noted is None else []

    def open_unit(self) -> OpenUnit:
        """The unit that is being fed, begun if need be."""
        if self.unit is None:
            self.unit = OpenUnit(self.number)
        return self.unit

    def begin_sound(self, unit: OpenUnit) -> HeardUnit:
        """The sound of the unit is complete. It is of the epoch that the session knows: a cancel that comes meanwhile breaks it off."""
        if unit.heard is None:
            unit.heard = self.gather.waiting.popleft()
        unit.epoch = self.epoch
        if unit.heard.noted is not None:
            unit.number = unit.heard.noted.number
            return unit.heard
        forced = unit.number < self.config.force_listen_count or unit.heard.end_ms <= self.config.listen_until_ms
        # a turn that is told of goes on to its end, whatever an update says
        forced = forced and self.turn_label is None
        # the turn that was in progress when the session was lost does not go on
        lost = self.fed_open and self.turn_label is None
        unit.listens = self.force_listen or forced or lost
        return unit.heard

    def feed_noted(self, unit: OpenUnit, noted: Note) -> None:
        """A unit of the log is in the context as it was there before; its terminator is to end it."""
        unit.fed, unit.tokens = list(noted.fed), list(noted.tokens)
        unit.said = [token for token in noted.fed[1:] if self.vocabulary.is_text(token)]
        if unit.fed:
            self.fed_open = unit.fed[-1] != self.tokens.turn_eos

    def lacks(self, rows: int) -> int:
        """Tokens short of room for `rows` more of the open unit and all that may follow in it."""
        decided = 0 if self._replaying else self.config.rules.most_tokens
        needed = rows + AUDIO_ROWS + decided + len(self.close) + 4
        return needed - self.room

    def make_room(self, rows: int) -> bool:
        """Has units leave until `rows` more of the open unit fit. False: something else is to be fed first. Raises Overflow."""
        if self.lacks(rows) <= 0:
            return True
        if self.close and (self.unit is None or not self.unit.rows):
            self.leaving = True
            return False
        # pages leave whole
        self._shed(self.lacks(rows) + self.table.pool.page)
        if self.lacks(rows) > 0:
            raise self._overflow()
        return self.prefix is Kind.UNIT

    def make_prefix_room(self, rows: int) -> bool:
        """True: `rows` more of the prefix fit, which are on pages of their own. Else units leave, and with them the recap may change.

        Raises Overflow.
        """
        page = self.table.pool.page
        short = -(-rows // page) - self.free_pages
        if short <= 0:
            return True
        self._shed((short + 1) * page)
        return False

    def append(self, count: int) -> Appended | None:
        """Places for tokens that were reckoned with when their unit was placed, by the rules of then: should there be more of them, units
        leave. None: something else is to be fed first. Raises MemoryError."""
        try:
            return self.table.append(count)
        except PoolExhausted:
            self._shed(self.table.pool.page)
            return self.table.append(count) if self.prefix is Kind.UNIT else None

    def cut(self, leaving: Leaving) -> None:
        """The oldest units leave."""
        start = self.table.window_start
        self.table.cut(start, start + leaving.tokens)
        if self.window.drop(leaving, self.config.window) and self.prefix is Kind.UNIT:
            self.prefix = Kind.TAIL
            self.table.cut_prefix(self.shared.length if self.shared is not None else 0)

    @property
    def _replaying(self) -> bool:
        return self.unit is not None and self.unit.noted is not None

    def _shed(self, short: int) -> None:
        """Units leave that hold `short` tokens together, or all. Raises Overflow: none may."""
        rules = self.config.window
        if self._replaying and rules.mode == "off":
            # a log that is longer than this window is no fault of the session
            rules = replace(rules, mode="basic")
        # one whose end is not fed yet stays
        spans = list(self.window.spans)[: -1 if self.close else None]
        held = sum(span.length for span in spans)
        leaving = before_unit(rules, spans, min(short, held)) if held else None
        if leaving is None:
            raise self._overflow()
        self.cut(leaving)

    def _overflow(self) -> Overflow:
        return Overflow(f"the session's {self.reserve} pages are full")

    def flushed(self) -> None:
        """The end of the last unit was fed: what is to leave leaves."""
        self.close = ()
        self.leaving = False
        leaving = after_unit(self.config.window, self.table.prefix_length, self.window.spans)
        if leaving.units:
            self.cut(leaving)

    def end_unit(self, terminator: tuple[int, ...]) -> OpenUnit:
        """The unit is over; what ends it rides with the next rows."""
        unit = self.unit
        assert unit is not None
        unit.fed.extend(terminator)
        self.close = (*terminator, self.tokens.unit_end)
        self.window.spans.append(UnitSpan(unit.rows + len(self.close), tuple(unit.said)))
        self.unit = None
        self.number, self.ended = unit.number + 1, self.ended + 1
        self.leaving = after_unit(self.config.window, self.table.prefix_length, self.window.spans).units > 0
        return unit

    def break_off(self) -> OpenUnit | None:
        """A cancel: the turn in progress ends here. The unit that was being written, if one was."""
        self.force_listen = True
        self.turn_label = None
        self.text.reset()
        unit = self.unit
        if unit is None or not unit.decoding:
            return None
        if self.fed_open:
            terminator: tuple[int, ...] = (self.tokens.turn_eos, self.tokens.chunk_eos)
            self.fed_open = False
        else:
            terminator = (self.tokens.chunk_eos if len(unit.tokens) > 1 else self.tokens.listen,)
        return self.end_unit(terminator)

    def clear(self) -> None:
        """Forgets sound and frames that no unit has."""
        unit = self.unit
        if unit is not None and unit.heard is None:
            if unit.rows:
                self.table.rewind(unit.rows + len(unit.closing))
                self.close = unit.closing
            self.unit = None
        self.gather.clear()
        self.camera.clear()
