"""When receipts of accepted appends are due: one timer for all sessions of a stage, so that they leave together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stage_kit.session import Session


class Receipts:
    """Sessions that owe one. None waits longer than the interval."""

    def __init__(self, interval_ms: int) -> None:
        self._interval_s = interval_ms / 1000
        self._owing: dict[Session, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def owe(self, session: Session) -> None:
        """It will be told that its receipt is due, unless it settles before."""
        self._owing[session] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._due)

    def settle(self, session: Session) -> None:
        """The receipt rode ahead of something, or nobody waits for it."""
        self._owing.pop(session, None)

    def _due(self) -> None:
        self._timer = None
        owing, self._owing = self._owing, {}
        for session in owing:
            session.receipt_is_due()
