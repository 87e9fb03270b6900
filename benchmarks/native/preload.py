"""Engines whose sessions begin full: a context of minutes without the minutes. For benchmarks alone."""

from __future__ import annotations

import random
from typing import Any

from benchmarks.native.random_pages import draw
from stage_kit import Slot
from talker_svc.minicpmo45.engine import MiniCpmTalkerEngine
from talker_svc.minicpmo45.session import Session as TalkerSession
from thinker_svc.minicpmo45.engine import MiniCpmThinkerEngine
from thinker_svc.minicpmo45.session import Kind, Session
from thinker_svc.minicpmo45.window import UnitSpan
from torch_kit.page_table import PageTable

UNIT_TOKENS = 16
"""Of a unit of those that a context is filled with."""


class PreloadedThinker(MiniCpmThinkerEngine):
    """Fills `tokens` of a session's window with random keys and values behind its prefix; its audio encoder's cache has a random age."""

    def __init__(self, settings: Any, tokens: int) -> None:
        super().__init__(settings)
        self._tokens = tokens
        self._ages = random.Random(45)

    def step(self, slots: list[Slot]) -> None:
        try:
            super().step(slots)
        finally:
            # as soon as the prefix is made: the first unit may be begun in a step of others
            for slot in slots:
                session: Session = slot.state
                if self._tokens and session.prefix is Kind.UNIT and not session.begun and not session.window.spans:
                    self._fill(session)

    def _fill(self, session: Session) -> None:
        fill(session.table, self._tokens)
        # so that a full window loses a unit at a time
        lengths = [UNIT_TOKENS] * (self._tokens // UNIT_TOKENS) + [self._tokens % UNIT_TOKENS]
        session.window.spans.extend(UnitSpan(length) for length in lengths if length)
        perception, row = self._perception, session.row
        perception.cache[:, row].normal_()
        perception._cached[row] = 50 * self._ages.randrange(perception._limit // 50 - 1)


class PreloadedTalker(MiniCpmTalkerEngine):
    """Every turn begins with `tokens` held."""

    def __init__(self, settings: Any, tokens: int) -> None:
        super().__init__(settings)
        self._tokens = tokens

    def step(self, slots: list[Slot]) -> None:
        for slot in slots:
            session: TalkerSession = slot.state
            turn = session.turn
            if self._tokens and turn is not None and turn.units == 0 and session.table.window_length == 0:
                fill(session.table, self._tokens)
        super().step(slots)


def fill(table: PageTable, tokens: int) -> None:
    """Appends `tokens`, whose keys and values are normal."""
    first = table.page_count
    table.append(tokens)
    draw(table.pool, table.pages[first:])
