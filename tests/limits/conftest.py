"""Houses and lines, as the failover tests have them."""

from __future__ import annotations

from tests.failover.conftest import dial, make_house, pytest_runtest_makereport

__all__ = ["dial", "make_house", "pytest_runtest_makereport"]
