"""The real models, once: served by every process of the house, and the recognizer alone, which judges what is heard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.embedded.house import EmbeddedHouse, Shared, fetch_models, shared_house
from thinker_svc.embedded.moonshine import Moonshine


@pytest.fixture(scope="session")
def embedded_house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedHouse]:
    """Every process with its real models. Tests leave it as they found it."""
    with shared_house(tmp_path_factory.mktemp("embedded")) as house:
        yield house


@pytest.fixture(scope="session")
def recognizer() -> Moonshine:
    """The recognizer without any process around it."""
    fetch_models()
    return Moonshine()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """A failure shows the end of each process's log."""
    report = yield
    if report.failed and Shared.house is not None:
        report.sections.extend((f"log of {name}", log) for name, log in Shared.house.logs().items())
    return report
