"""A run folder for the supervisor's tests, a small real Realtime server for the client's, and an API of Kubernetes for `parley costs`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from parley.supervisor import RunFolder
from tests.support.pods_api import PodsApi, certificates

from .children import Recorder


@pytest.fixture
def folder() -> Iterator[RunFolder]:
    made = RunFolder.create()
    yield made
    made.remove()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(scope="session")
def api_certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def api(api_certificates: Path) -> Iterator[PodsApi]:
    with PodsApi(api_certificates) as served:
        yield served


@pytest.fixture
def account(api: PodsApi, tmp_path: Path) -> Path:
    """What the API gives a pod that may list and patch pods."""
    return api.account(tmp_path / "account")
