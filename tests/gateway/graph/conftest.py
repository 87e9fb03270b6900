"""The shipped profiles, whole and as mappings to be spoilt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.graph import Graph, Profile, load_profile
from gateway.profile_file import load_profile_file

PROFILES = Path(__file__).parents[3] / "profiles"
EMBEDDED = (PROFILES / "embedded.yaml").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def profiles() -> Path:
    return PROFILES


@pytest.fixture
def document() -> dict[str, Any]:
    """profiles/embedded.yaml, parsed anew for each test."""
    parsed: dict[str, Any] = yaml.safe_load(EMBEDDED)
    return parsed


@pytest.fixture(scope="session")
def load() -> Callable[[dict[str, Any]], Profile]:
    return lambda document: load_profile(yaml.safe_dump(document, sort_keys=False), "spoilt")


@pytest.fixture(scope="session")
def embedded() -> Graph:
    return Graph(load_profile_file(PROFILES / "embedded.yaml"))
