"""These tests build images and run them in a container engine of their own: `make test-deploy` runs them, `make test` does not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.deploy.support.compose import Project
from tests.deploy.support.engine import Engine, running
from tests.support.proxy import free_port

TARGETS = ("gateway", "vad", "thinker", "talker", "vocoder", "proxy", "valkey")
DRAIN_S = 5


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    with running() as made:
        made.take_base()
        yield made


@pytest.fixture(scope="session")
def images(engine: Engine) -> dict[str, str]:
    """By target of deploy/Dockerfile: its tag."""
    tags = {target: f"parley/{target}:0.1.0" for target in TARGETS}
    for target, tag in tags.items():
        engine.build(target, tag)
    return tags


@pytest.fixture(scope="module")
def project(engine: Engine, images: dict[str, str]) -> Iterator[Project]:
    """Up and healthy. Its volumes stay for the next, and go with the engine."""
    made = Project(engine, free_port(), DRAIN_S)
    try:
        made.up()
        yield made
    finally:
        made("down", "--remove-orphans", timeout_s=120)
