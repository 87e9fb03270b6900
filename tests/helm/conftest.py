"""These tests run real helm and kubectl, which they fetch: `make test-deploy` runs them, `make test` does not."""

from __future__ import annotations

import pytest

from tests.helm.support import binaries


@pytest.fixture(scope="session", autouse=True)
def programs() -> None:
    """There before a test's time begins to run."""
    binaries.helm(4)
    binaries.helm(3)
