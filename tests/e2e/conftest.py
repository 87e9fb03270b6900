"""The houses of the end-to-end tests: one for all who only talk, and others for those who break things."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from tests.support.house import House
from tests.support.listener import Listener, listen

_open: list[House] = []
MakeHouse = Callable[..., House]
Talk = Callable[..., Any]


@pytest.fixture(scope="session")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Every service a process of its own. Tests leave it as they found it; who vanishes from it is waited for a second."""
    made = House(tmp_path_factory.mktemp("house"), gateway={"PARLEY_GRACE_MS": "1000"})
    _open.append(made)
    try:
        yield made.start()
    finally:
        _open.remove(made)
        made.stop()


@pytest.fixture(scope="module")
def make_house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeHouse]:
    """Houses with settings of their own, stopped at the end of the module. Arguments: see House."""
    made: list[House] = []

    def make(**options: Any) -> House:
        house = House(tmp_path_factory.mktemp("house"), **options)
        made.append(house)
        _open.append(house)
        return house.start()

    yield make
    for house in made:
        _open.remove(house)
        house.stop()


@pytest.fixture
async def talk() -> AsyncIterator[Talk]:
    """`await talk(house, **connect options)`: a welcomed raw conversation, closed after the test."""
    async with AsyncExitStack() as stack:

        async def begin(house: House, query: str = "", **options: Any) -> Listener:
            return await stack.enter_async_context(listen(house.realtime + query, **options))

        yield begin


async def admitted(talk: Talk, house: House) -> Listener:
    """A conversation, after as many refusals as it takes: a gateway needs a moment to reach a new replica."""
    async with asyncio.timeout(10):
        while True:
            try:
                listener: Listener = await talk(house)
                return listener
            except InvalidStatus as refused:
                assert refused.response.status_code == 503 and refused.response.headers["Retry-After"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """A failure shows the end of each process's log."""
    report = yield
    if report.failed:
        for house in _open:
            for name, log in house.logs().items():
                report.sections.append((f"log of {name}", log))
    return report
