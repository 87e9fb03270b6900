"""Houses with two gateways, or two replicas of a stage, and lines into them that outlive a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.e2e.conftest import make_house, pytest_runtest_makereport
from tests.failover.line import Line

Dial = Callable[..., Any]
PATIENT = {
    "PARLEY_REDIS_TIMEOUT_MS": "3000",
    "PARLEY_ATTACH_TIMEOUT_MS": "5000",
    "PARLEY_OPEN_TIMEOUT_MS": "15000",
    "PARLEY_UPDATE_TIMEOUT_MS": "10000",
    "PARLEY_STALL_TIMEOUT_MS": "20000",
    "PARLEY_PULSE_TIMEOUT_MS": "10000",
}
"""For houses whose store is never away and whose stages never stand still: a test machine that stalls counts as neither."""


@pytest.fixture
async def dial() -> AsyncIterator[Dial]:
    """`await dial(url, **options)`: a Line, hung up after the test with all that were resumed from it. Options: see Line.dial."""
    lines: list[Line] = []

    async def begin(url: str, **options: Any) -> Line:
        lines.append(await Line.dial(url, **options))
        return lines[-1]

    yield begin
    await asyncio.gather(*(socket.hang_up() for line in lines for socket in line.sockets))


__all__ = ["make_house", "pytest_runtest_makereport"]
