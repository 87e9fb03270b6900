"""A run folder for the supervisor's tests, and a small real Realtime server for the client's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from parley.supervisor import RunFolder

from .children import Recorder


@pytest.fixture
def folder() -> Iterator[RunFolder]:
    made = RunFolder.create()
    yield made
    made.remove()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()
