"""One house for all of chaos."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import pytest

from tests.chaos.scenarios import house
from tests.chaos.world import World


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Two gateways, two replicas of each scripted stage, a Valkey; SEED repeats a run's choices."""
    seed = int(os.environ.get("SEED") or secrets.randbelow(1_000_000))
    made = house(tmp_path_factory.mktemp("chaos"), seed)
    try:
        yield made
    finally:
        made.house.stop()
