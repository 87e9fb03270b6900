"""Room for outputs, seen from two threads."""

from __future__ import annotations

import threading

from stage_kit.engine import Label
from stage_kit.outputs import OVERHEAD_BYTES
from stage_kit.slot import Slot

BOUND = 2 * OVERHEAD_BYTES
LABEL = Label(0, 1, "r1")


class Meanwhile(int):
    """A size during whose addition the engine, on its own thread, makes an output and asks whether there is room for more."""

    def __new__(cls, size: int, slot: Slot) -> Meanwhile:
        made = super().__new__(cls, size)
        made.slot, made.asked, made.has_room = slot, threading.Event(), True
        made.engine = threading.Thread(target=made._make)
        return made

    slot: Slot
    asked: threading.Event
    has_room: bool
    engine: threading.Thread

    def __radd__(self, other: int) -> int:
        self.engine.start()
        self.asked.wait(0.3)  # in vain where it has to wait for this
        return other + int(self)

    def _make(self) -> None:
        self.slot.emit(None, LABEL)
        self.has_room = self.slot.has_room()
        self.asked.set()


def test_an_engine_that_found_no_room_is_woken_when_some_is_freed_at_that_moment() -> None:
    slot = Slot("s", None, lambda _: None, lambda: None, BOUND, None)
    slot.emit(None, LABEL)
    freed = Meanwhile(OVERHEAD_BYTES, slot)
    woken = slot.freed(freed)
    freed.engine.join()
    assert slot.has_room() and (woken or freed.has_room)
