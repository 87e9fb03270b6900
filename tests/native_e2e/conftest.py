"""Houses of a native model of the scripted kind, and lines into them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import MakeHouse, make_house, pytest_runtest_makereport
from tests.failover.conftest import PATIENT, dial
from tests.support.house import House

STAGES = ("turn", "seer", "singer", "sounder")
PROFILE = {"PARLEY_PROFILE": str(Path(__file__).with_name("duplex.yaml"))}


@pytest.fixture(scope="module")
def duplex(make_house: MakeHouse) -> House:
    """All stages in one process, one gateway."""
    return make_house(services=("native",), gateway={**PATIENT, **PROFILE}, stages=STAGES)


__all__ = ["PROFILE", "STAGES", "dial", "make_house", "pytest_runtest_makereport"]
