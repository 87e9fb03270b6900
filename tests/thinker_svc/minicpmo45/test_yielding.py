"""The thinker goes below those who share its card, by what CUDA reads when it is first asked anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from minicpmo45.memory_plan import PlanError
from thinker_svc.minicpmo45 import engine
from thinker_svc.minicpmo45.engine import MiniCpmThinkerEngine
from thinker_svc.minicpmo45.settings import MiniCpmThinkerSettings
from thinker_svc.minicpmo45.yielding import PRIORITY


@pytest.mark.parametrize(("given", "device", "expected"), [(None, "cuda", "1"), ("0", "cuda", "0"), (None, "cpu", None)])
def test_its_priority_is_known_before_the_card_is_asked_for_its_size(
    given: str | None, device: str, expected: str | None, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str | None] = []

    def plan(*_: object) -> None:
        found.append(os.environ.get(PRIORITY))
        raise PlanError("card_bytes", "nothing is planned here")

    # set first, so that what the engine sets is taken back, too
    monkeypatch.setenv(PRIORITY, given or "")
    if given is None:
        monkeypatch.delenv(PRIORITY)
    monkeypatch.setattr(engine, "planned", plan)
    with pytest.raises(PlanError):
        MiniCpmThinkerEngine(MiniCpmThinkerSettings(checkpoint=tiny_checkpoint, device=device, kernels="plain"))
    assert found == [expected]
