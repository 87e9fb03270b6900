"""One loaded engine for all tests of the listening service: sessions share it as they do in the service."""

from __future__ import annotations

import pytest

from tests.vad_svc.support.harness import Clock
from vad_svc.engine import TurnEngine
from vad_svc.models import SILERO, SMART_TURN, models_root
from vad_svc.settings import TurnSettings


@pytest.fixture(scope="session")
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def engine(clock: Clock) -> TurnEngine:
    if not all((models_root() / name).exists() for name in (SILERO, SMART_TURN)):
        pytest.skip("the models are not here")
    engine = TurnEngine(TurnSettings(), clock)
    engine.load()
    return engine
