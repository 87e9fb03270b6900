"""The talk page in a real browser, on the house of real models."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.embedded.conftest import pytest_runtest_makereport as pytest_runtest_makereport
from tests.embedded.house import EmbeddedHouse, shared_house
from tests.page.browser import TalkPage, find_chromium, talk_page

OpenPage = Callable[..., Awaitable[TalkPage]]


@pytest.fixture(scope="session")
def embedded_house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedHouse]:
    with shared_house(tmp_path_factory.mktemp("embedded")) as house:
        yield house


@pytest.fixture
async def open_page(embedded_house: EmbeddedHouse, tmp_path: Path) -> AsyncIterator[OpenPage]:
    """`await open_page(microphone=WAV bytes or None)`: the page, loaded. Closed after the test, which fails if the page complained."""
    if (chromium := find_chromium()) is None:
        pytest.skip("there is no Chromium or Chrome on PATH")
    async with AsyncExitStack() as stack:

        async def open_one(**options: Any) -> TalkPage:
            return await stack.enter_async_context(talk_page(embedded_house, chromium, tmp_path, **options))

        yield open_one
