"""When each stage of a deployment stepped, and how many sessions: lines of three numbers, on the one monotonic clock of a machine.

python -m benchmarks.native.step_log FOLDER      # in a run with phases in step: what a unit of all sessions is made of
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from benchmarks import report
from stage_kit import Engine, Slot

STAGES = ("thinker", "talker", "vocoder")
REST_S = 0.25
"""A unit of sessions in step begins where the thinker rested for so long."""


class Step(msgspec.Struct, frozen=True, array_like=True):
    """Seconds of the monotonic clock, and sessions."""

    began: float
    ended: float
    slots: int


def logged(engine: Engine, file: Path) -> Engine:
    """The same engine, whose steps are written down as they end."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lines, step = file.open("a", buffering=1), engine.step

    def timed(slots: list[Slot]) -> None:
        began = time.monotonic()
        step(slots)
        lines.write(f"{began:.6f} {time.monotonic():.6f} {len(slots)}\n")

    engine.step = timed  # type: ignore[method-assign]
    return engine


def read(file: Path) -> list[Step]:
    """In the order of time."""
    rows = (line.split() for line in file.read_text().splitlines())
    return [Step(float(began), float(ended), int(slots)) for began, ended, slots in rows]


def waves(folder: Path) -> Iterator[dict[str, list[Step]]]:
    """Steps of each stage, unit by unit; times from the thinker's first step of the unit."""
    steps = {stage: read(folder / f"{stage}.steps") for stage in STAGES}
    thinker = steps["thinker"]
    rested = [after.began for before, after in itertools.pairwise(thinker) if after.began - before.ended > REST_S]
    first = [*(step.began for step in thinker[:1]), *rested]
    for begins, ends in itertools.pairwise([*first, float("inf")]):
        yield {
            stage: [Step(step.began - begins, step.ended - begins, step.slots) for step in each if begins <= step.began < ends]
            for stage, each in steps.items()
        }


def table(folder: Path, sessions: int) -> str:
    """Medians over the units in which at least `sessions` were stepped: of each stage the ms at which it began and ended, its steps, the
    sessions of a step, and the ms that it stepped."""
    found = [wave for wave in waves(folder) if wave["vocoder"] and sum(step.slots for step in wave["vocoder"]) >= sessions]
    rows = []
    for stage in STAGES:
        each = [wave[stage] for wave in found if wave[stage]]
        numbers: list[list[float]] = [
            [wave[0].began * 1000 for wave in each],
            [wave[-1].ended * 1000 for wave in each],
            [len(wave) for wave in each],
            [sum(step.slots for step in wave) / len(wave) for wave in each],
            [sum(step.ended - step.began for step in wave) * 1000 for wave in each],
        ]
        rows.append([stage, len(each), *(report.percentile(series, 50) for series in numbers)])
    return report.table(["stage", "units", "begins, ms", "ends, ms", "steps", "sessions a step", "in steps, ms"], rows)


if __name__ == "__main__":
    print(table(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1))
