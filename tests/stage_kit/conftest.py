"""The contract's tests run over both ways to converse."""

from __future__ import annotations

import pytest

from tests.stage_kit import support


@pytest.fixture(params=[False, True], ids=["converse", "carry"])
def carried(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether `serving` gives a client whose conversations share one Carry call."""
    monkeypatch.setattr(support, "CARRIED", request.param)
    return bool(request.param)
