"""Failures that are ordered from outside: a file in a folder names a session and what shall happen to it; another says that it has."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from stage_kit import SessionOver, Slot, StepFailed

Kind = Literal["nan", "step", "over", "error"]


class Order(msgspec.Struct, frozen=True):
    """nan: its numbers become NaN, which the engine has to find. step: a step fails and names it. over: the session is over. error: every
    step fails that it is part of, and none names it, until it is alone."""

    session: str
    kind: Kind


class Inbox:
    """Of one stage; asked once a step, by the engine's thread."""

    def __init__(self, folder: Path, stage: str) -> None:
        self._file, self._done = folder / f"{stage}.order", folder / f"{stage}.done"
        self._order: Order | None = None

    def meet(self, slots: list[Slot], poison: Callable[[Slot], bool]) -> None:
        """Does what is ordered, once the session is in the batch; `poison` answers False if the session has nothing yet that could be
        spoilt. Raises what the order says."""
        if self._file.exists():
            self._order = msgspec.json.decode(self._file.read_bytes(), type=Order)
            self._file.unlink()
        order = self._order
        slot = next((slot for slot in slots if order is not None and slot.session_id == order.session), None)
        if order is None or slot is None:
            return
        if order.kind == "error" and len(slots) > 1:
            raise RuntimeError("injected: a batch fails")
        if order.kind == "nan" and not poison(slot):
            return
        self._order = None
        self._done.write_text(str(time.monotonic()))
        if order.kind == "step":
            raise StepFailed(slot, "injected")
        if order.kind == "over":
            raise SessionOver(slot, "injected")
        if order.kind == "error":
            raise RuntimeError("injected: a session fails")


class Faults:
    """The other side: orders failures, and knows when they happened."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def order(self, stage: str, order: Order) -> None:
        """What was ordered of this stage before and is not done yet is taken back."""
        (self._folder / f"{stage}.done").unlink(missing_ok=True)
        written = self._folder / f"{stage}.written"
        written.write_bytes(msgspec.json.encode(order))
        written.rename(self._folder / f"{stage}.order")

    def done(self, stage: str) -> float | None:
        """Monotonic second at which the last order of this stage was done; None: not yet."""
        file = self._folder / f"{stage}.done"
        told = file.read_text() if file.exists() else ""
        return float(told) if told else None
