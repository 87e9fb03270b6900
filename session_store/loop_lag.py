"""How late an event loop is: what every process of the house watches of itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PERIOD_S = 0.1


async def watch_loop(observe: Callable[[float], None], clock: Callable[[], float], period_s: float = PERIOD_S) -> None:
    """Until cancelled, tells the seconds of `clock` by which a timer of `period_s` rang late: so long the loop could do nothing else."""
    while True:
        due = clock() + period_s
        await asyncio.sleep(period_s)
        observe(max(0.0, clock() - due))
