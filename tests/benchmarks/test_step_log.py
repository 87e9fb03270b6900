"""Steps that were written down, and units of sessions in step."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.native.step_log import STAGES, Step, logged, read, table, waves
from stage_kit import Slot
from tests.stage_kit.support import Probe


class Quick(Probe):
    """Its third step goes wrong."""

    def step(self, slots: list[Slot]) -> None:
        self.batches.append([])
        if len(self.batches) == 3:
            raise RuntimeError


def _written(folder: Path, **steps: str) -> Path:
    for stage in STAGES:
        (folder / f"{stage}.steps").write_text(steps.get(stage, ""))
    return folder


def test_steps_are_written_as_they_end(tmp_path: Path) -> None:
    engine, file = Quick(), tmp_path / "new" / "probe.steps"
    logged(engine, file)
    engine.step([])
    engine.step([])
    with pytest.raises(RuntimeError):
        engine.step([])
    steps = read(file)
    assert [step.slots for step in steps] == [0, 0] and len(engine.batches) == 3
    assert steps[0].began <= steps[0].ended <= steps[1].began


def test_a_unit_begins_where_the_thinker_rested(tmp_path: Path) -> None:
    thinker = "10.0 10.1 2\n10.2 10.3 2\n11.0 11.1 2\n"
    folder = _written(tmp_path, thinker=thinker, talker="10.3 10.4 2\n", vocoder="10.4 10.5 1\n10.5 10.75 1\n11.25 11.5 1\n")
    first, second = waves(folder)
    assert [step.began for step in first["thinker"]] == pytest.approx([0.0, 0.2]) and len(first["vocoder"]) == 2
    assert second["vocoder"] == [Step(0.25, 0.5, 1)] and not second["talker"]
    rows = table(folder, 2).splitlines()[2:]
    assert rows[2] == "| vocoder | 1 | 400.0 | 750.0 | 2.0 | 1.0 | 350.0 |"


@pytest.mark.parametrize("vocoder", ["", "1 2 3\n"])
def test_a_run_without_units_has_an_empty_table(tmp_path: Path, vocoder: str) -> None:
    assert table(_written(tmp_path, vocoder=vocoder), 1).splitlines()[2] == "| thinker | 0 | nan | nan | nan | nan | nan |"
