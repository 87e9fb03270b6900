"""One house for all of chaos."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.chaos.scenarios import house
from tests.chaos.world import World


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Two gateways, two replicas of each scripted stage, a Valkey. Each run makes the same choices, or those of SEED."""
    made = house(tmp_path_factory.mktemp("chaos"), int(os.environ.get("SEED") or 1))
    try:
        yield made
    finally:
        made.house.stop()
