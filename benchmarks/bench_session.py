"""What a conversation that survives costs: commit, admission, resume, the gateway's CPU time and memory, each beside a floor or a peer.

`make bench-session`; `--only journal|admission|resume|capacity|memory` (may be given again) measures that part anew and keeps the other
figures of the last run. `--plot` measures nothing: it draws the figures that lie there, perhaps those of a machine without matplotlib.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import os
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks import report
from benchmarks.session import admission, capacity, journal, memory, resume

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "session"
PARTS: dict[str, ModuleType] = {
    "journal": journal,
    "admission": admission,
    "resume": resume,
    "capacity": capacity,
    "memory": memory,
}


def measures(arguments: argparse.Namespace) -> dict[str, Callable[[], Awaitable[dict[str, Any]]]]:
    return {
        "journal": lambda: journal.measure(arguments.conversations, arguments.seconds),
        "admission": lambda: admission.measure(arguments.admission_seconds),
        "resume": lambda: resume.measure(arguments.resumes),
        "capacity": lambda: capacity.measure(arguments.capacity, arguments.seconds),
        "memory": lambda: memory.measure(arguments.sessions, arguments.memory_seconds),
    }


def earlier() -> dict[str, Any]:
    """Raw figures of the last run, by part."""
    path = report.RESULTS / f"{NAME}.json"
    return dict(msgspec.json.decode(path.read_bytes())) if path.exists() else {}


def stamp() -> str:
    when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"{when}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} before it"


def plot(raw: dict[str, Any]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 3.8), width_ratios=(3, 2))
    _latencies(left, raw)
    if "capacity" in raw:
        _cpu(right, raw["capacity"])
    figure.tight_layout()
    figure.savefig(report.RESULTS / f"{NAME}.png", dpi=120)


def _latencies(axis: Axes, raw: dict[str, Any]) -> None:
    """p50 to p99 of each figure and of its floor; a mark where the goal for p99 is."""
    bars: list[tuple[str, list[float], float | None]] = []
    if "journal" in raw:
        bars += [("commit", raw["journal"]["commit_ms"], journal.GOAL_MS[1]), ("bare EVALSHA", raw["journal"]["floor_busy_ms"], None)]
    if "admission" in raw:
        steady = raw["admission"]["steady"]
        bars += [("reserve, 200 opens/s", steady["reserve_ms"], admission.GOAL_MS), ("bare reserve script", steady["floor_ms"], None)]
    if "resume" in raw:
        bars += [("redial to resumed", raw["resume"]["resumed_ms"], resume.GOAL_MS), ("bare redial", raw["resume"]["floor_ms"], None)]
    for place, (_, values, goal) in enumerate(bars):
        axis.barh(place, values[1] - values[0], left=values[0], height=0.5, color="C7" if goal is None else "C0")
        if goal is not None:
            axis.plot([goal, goal], [place - 0.4, place + 0.4], color="C3")
    axis.set_yticks(range(len(bars)), [name for name, _, _ in bars])
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlim(left=min((values[0] for _, values, _ in bars), default=1.0) / 2)
    axis.set_xlabel("ms, p50 to p99; red: goal for p99")


def _cpu(axis: Axes, raw: dict[str, Any]) -> None:
    trials = [*raw["trials"][:1], raw["carried"]]
    axis.plot([trial["conversations"] for trial in trials], [trial["cpu"]["gateway"] for trial in trials], "o-", label="gateway")
    ends = [raw["carried"]["conversations"], capacity.GOAL_CONVERSATIONS], [raw["carried"]["cpu"]["gateway"], capacity.extrapolated(raw)]
    axis.plot(*ends, "C0:", label="gateway, extrapolated")
    axis.plot([raw["echo"]["conversations"]], [raw["echo"]["cpu"]], "C7s", label="bare echo")
    axis.axhline(capacity.GOAL, color="C3")
    axis.set_xlabel("conversations")
    axis.set_ylabel("CPU-seconds a second; red: goal")
    axis.legend()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=PARTS)
    parser.add_argument("--plot", action="store_true")
    parser.add_argument("--conversations", type=int, default=100, help="of the journal's part")
    parser.add_argument("--capacity", type=int, default=200, help="most conversations of the gateway's part")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement under load")
    parser.add_argument("--admission-seconds", type=float, default=10.0)
    parser.add_argument("--resumes", type=int, default=100)
    parser.add_argument("--sessions", type=int, default=20, help="of the memory's part")
    parser.add_argument("--memory-seconds", type=float, default=32.0)
    arguments = parser.parse_args()
    raw = earlier() if arguments.only or arguments.plot else {}
    if arguments.plot:
        plot(raw)
        return
    for name, measure in measures(arguments).items():
        if not arguments.only or name in arguments.only:
            when = stamp()
            raw[name] = {"measured": when, **await measure()}
            print(f"## {PARTS[name].TITLE}\n\n{PARTS[name].section(raw[name])}\n", flush=True)
    sections = [(part.TITLE, f"{part.section(raw[name])}\n\n{raw[name]['measured']}.") for name, part in PARTS.items() if name in raw]
    path = report.write(NAME, "A session: what survival costs", sections, raw)
    if find_spec("matplotlib") is not None:
        plot(raw)
    print(path)


if __name__ == "__main__":
    asyncio.run(main())
