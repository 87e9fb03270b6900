"""Lag by sessions, from what `native_load` wrote, beside the goals and the best that is published.

`python -m benchmarks.native.load_plot [native_load.json]` draws again what lies there, perhaps that of a machine without matplotlib.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GOALS = {
    ("step", 1.0, 5): {1: 75, 32: 190, 48: 250, 64: 290, 128: 450},
    ("spread", 0.5, 5): {1: 75, 32: 130, 48: 140, 64: 155, 128: 220},
    ("spread", 0.5, 10): {1: 90, 32: 150, 48: 165, 64: 185, 128: 250},
}
"""Milliseconds of the p95, by phases, speak share and Euler steps: issue 5."""
PUBLISHED = {1: 202, 32: 482, 48: 664}
"""In step, T=5, audio alone, a context of 8192, the same model on an H200 (`reference/interactive_model.md`); out of memory from 56."""
Found = Mapping[str, Any]


def draw(levels: Iterable[Found], path: Path) -> None:
    """A figure for each of the goals that there are levels for."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plain = [level for level in levels if not level["video"] and not level["cancels"] and level["lag"]]
    kinds = [kind for kind in GOALS if any(_kind(level) == kind for level in plain)]
    if not kinds:
        return
    figure, axes = plt.subplots(1, len(kinds), figsize=(5.5 * len(kinds), 4), squeeze=False)
    for axis, kind in zip(axes[0], kinds, strict=True):
        _draw(axis, kind, [level for level in plain if _kind(level) == kind])
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _kind(level: Found) -> tuple[str, float, int]:
    return level["phases"], float(level["share"]), level["steps"]


def _draw(axis: Axes, kind: tuple[str, float, int], levels: list[Found]) -> None:
    phases, share, steps = kind
    for settings in sorted({" ".join(level["env"]) for level in levels}):
        chosen = sorted((level for level in levels if " ".join(level["env"]) == settings), key=lambda level: level["sessions"])
        counts = [level["sessions"] for level in chosen]
        for q, line in ((95, "o-"), (50, ".:")):
            axis.plot(counts, [report.percentile(level["lag"], q) for level in chosen], line, label=f"p{q} {settings}".strip())
    axis.plot(*zip(*GOALS[kind].items(), strict=True), "k_", markersize=14, label="goal, p95")
    if phases == "step":
        axis.plot(*zip(*PUBLISHED.items(), strict=True), "C7s--", label="published, p95")
    axis.set(xlabel="sessions", ylabel="lag, ms", ylim=(0, None), title=f"{phases}, {share:.0%} speak, T={steps}")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7)


if __name__ == "__main__":
    source = Path(sys.argv[1]) if sys.argv[1:] else report.RESULTS / "native_load.json"
    draw(json.loads(source.read_text())["levels"], source.with_suffix(".png"))
