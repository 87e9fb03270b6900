"""From the end of a unit to its last sample, through the three engines one after the other, all sessions in step."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.native.house import House
from benchmarks.native.material import Bench, picture

WARM, COUNTED = 3, 6
"""Units: those that meet new shapes, and those that count."""


def measure(bench: Bench, house: House, sessions: int, *, seen: bool) -> dict[str, Any]:
    """Medians over units and sessions, in milliseconds; `busy` is each stage's own share of one unit of all sessions."""
    jpeg = picture() if seen else None
    times: dict[str, list[float]] = {}
    busy: dict[str, list[float]] = {}
    steps: dict[str, list[int]] = {}
    with house.open(sessions) as lines:
        for unit in range(WARM + COUNTED):
            made = house.unit(lines, jpeg)
            if unit < WARM:
                continue
            for each in made:
                for name in each.__struct_fields__:
                    times.setdefault(name, []).append(getattr(each, name))
            for stage, ms in house.busy.items():
                busy.setdefault(stage, []).append(ms)
                steps.setdefault(stage, []).append(house.steps[stage])
        held = lines[0].slots["thinker"].state.table.length
    return {
        "sessions": sessions,
        "picture": seen,
        "context": held,
        "graphs": house.thinker._model.graphs.on,
        **{name: statistics.median(values) for name, values in times.items()},
        "worst": max(times["last_sample"]),
        "busy": {stage: statistics.median(values) for stage, values in busy.items()},
        "steps": {stage: statistics.median(values) for stage, values in steps.items()},
    }
