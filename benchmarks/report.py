"""Tables and plots under `benchmarks/results/`, each with the machine, the date and the command."""

from __future__ import annotations

import datetime
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

RESULTS = Path(__file__).parent / "results"


def percentile(values: Sequence[float], q: float) -> float:
    """Linear interpolation; NaN of nothing."""
    return float(np.percentile(np.asarray(values), q)) if len(values) else float("nan")


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def machine() -> str:
    cpu = next((line.split(":", 1)[1].strip() for line in _cpuinfo() if line.startswith("model name")), platform.machine())
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{os.cpu_count()} x {cpu}, Python {platform.python_version()}, load average {load}"


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def write(name: str, title: str, sections: Sequence[tuple[str, str]], raw: object) -> Path:
    """`name`.md for people and `name`.json with every sample."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    command = " ".join(["python -m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]])
    text = [f"# {title}", "", f"{when} · `{command}` · {machine()}", ""]
    for heading, body in sections:
        text += [f"## {heading}", "", body, ""]
    path = RESULTS / f"{name}.md"
    path.write_text("\n".join(text))
    (RESULTS / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(raw), indent=1))
    return path
