"""The raw results as tables and a plot; results of several runs may be joined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import msgspec

from benchmarks import report
from benchmarks.native.card import Card
from benchmarks.native.stages import Stage

matplotlib.use("Agg")
import matplotlib.pyplot as plt

UNIT_MS = 1000
GROWTH_MS = 100
"""Of a lag, over a run, that is still called steady."""
Raw = dict[str, Any]


def join(found: Raw, more: Raw) -> Raw:
    """Parts that `more` has replace those of `found`."""
    return {**found, **{name: part for name, part in more.items() if part}}


def sections(raw: Raw) -> list[tuple[str, str]]:
    card = msgspec.convert(raw["card"], Card)
    made = [(f"Card and conditions ({card.date})", _conditions(raw, card))]
    if raw.get("parity"):
        body = [[row["what"], row["bound"], row["found"], "yes" if row["holds"] else "NO"] for row in raw["parity"]]
        made.append(("The tiny model on the card against the CPU, before anything is timed", report.table(_PARITY, body)))
    if raw.get("stages"):
        stages = msgspec.convert(raw["stages"], list[Stage])
        made.append(
            (
                "Each network alone, ms a call (median); the floor is the larger of bytes / copy bandwidth and FLOPs / rate",
                _stages(stages, card),
            )
        )
    if raw.get("chain"):
        made.append(
            (
                "Three engines in one process and thread, all sessions in step: ms after the unit's last sample (medians)",
                _chain(raw["chain"]),
            )
        )
    if raw.get("deployment"):
        made.append(
            (
                "Store, gateway and three service processes, clients in real time, units evenly spread: ms at the client",
                _deployment(raw["deployment"]),
            )
        )
    if raw.get("failures"):
        made.append(("What failed", "\n".join(f"- {name}: {why}" for name, why in raw["failures"].items())))
    return made


_PARITY = ("what", "bound", "found", "holds")


def _conditions(raw: Raw, card: Card) -> str:
    lines = [
        f"- {card.name}, driver {card.driver or '?'}, torch {card.torch}: copy {card.copy_bytes_s / 1e12:.2f} TB/s (read plus written), "
        f"bf16 {card.bf16_flops / 1e12:.0f} TFLOP/s, TF32 {card.tf32_flops / 1e12:.0f}, fp32 {card.fp32_flops / 1e12:.0f} (8192 cubed)",
        *(f"- {line}" for line in raw.get("conditions", [])),
    ]
    return "\n".join(lines)


def _stages(stages: list[Stage], card: Card) -> str:
    body = []
    for each in sorted(stages, key=lambda each: each.sessions):
        floor, (count, own) = each.floor.ms(card), each.ran
        bound = "bytes" if each.floor.nbytes / card.copy_bytes_s > each.floor.flops / card.flops(each.floor.kind) else each.floor.kind
        replayed = "" if each.graph_ms is None else f"{each.graph_ms:.2f}{'' if each.served else ' *'}"
        least = min(each.ms, each.graph_ms or each.ms) / floor
        ran = "" if own is None else f"{own:.2f}"
        body.append([each.sessions, each.stage, f"{each.ms:.2f}", replayed, ran, count or "", f"{floor:.2f}", bound, f"{least:.1f}"])
    header = (
        "sessions",
        "stage",
        "plain ms",
        "from a graph ms",
        "kernels' own ms",
        "kernels",
        "floor ms",
        "bound by",
        "least, times floor",
    )
    return report.table(header, body) + "\n\n\\* measured in a graph; served without one."


def _chain(rows: list[Raw]) -> str:
    header = ("sessions", "picture", "graphs", "context at the end", "text", "thought", "codes", "first sample", "last sample", "worst")
    body = []
    for row in rows:
        busy = [f"{row['busy'][stage]:.0f} ({row['steps'][stage]:.0f})" for stage in ("thinker", "talker", "vocoder")]
        times = [row[name] for name in ("text", "thought", "codes", "first_sample", "last_sample", "worst")]
        kept = "yes" if sum(row["busy"].values()) < UNIT_MS else "NO"
        body.append([row["sessions"], _yes(row["picture"]), _yes(row["graphs"]), row["context"], *times, *busy, kept])
    return report.table((*header, "thinker ms (steps)", "talker ms (steps)", "vocoder ms (steps)", "within 1000 ms"), body)


def _deployment(rows: list[Raw]) -> str:
    header = ("sessions", "picture", "card shared by", "graphs", "units", "text p50", "p95", "first sound p50", "p95", "max")
    body = []
    for row in rows:
        text, sound, waits = row["text"], row["sound"], row["waits"]
        lags = [report.percentile(values, q) for values, q in ((text, 50), (text, 95), (sound, 50), (sound, 95), (sound, 100))]
        body.append(
            [
                row["sessions"],
                _yes(row["picture"]),
                row["sharing"],
                _yes(row["graphs"]),
                len(sound),
                *lags,
                report.percentile(waits, 95),
                _kept(row),
            ]
        )
    rule = (
        f"Real time is kept when every unit's sound came, within {UNIT_MS} ms of the unit's end, and its lag grew by less than "
        f"{GROWTH_MS} ms (medians of the last and the first third of a run). "
        "A listener waits for sound that comes when all before it was played."
    )
    return report.table((*header, "listener waits p95", "real time kept"), body) + "\n\n" + rule


def _kept(row: Raw) -> str:
    """No unit's sound is missing, none came a second or more after its unit, and the lag does not grow."""
    if row["errors"] or len(row["sound"]) < row["expected"]:
        return f"NO: {len(row['sound'])} of {row['expected']} units" + (f", {row['errors'][0]}" if row["errors"] else "")
    steady = max(row["sound"]) < UNIT_MS and row["growth"] < GROWTH_MS
    return "yes" if steady else f"NO: up to {max(row['sound']):.0f} ms, {row['growth']:+.0f} ms over the run"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def plot(raw: Raw, path: Path) -> None:
    """What a unit of all sessions takes, stage by stage; the line is the unit's own length."""
    rows = raw.get("chain") or []
    if not rows:
        return
    figure, axis = plt.subplots(figsize=(9, 0.5 * len(rows) + 1.6))
    labels = [f"{row['sessions']} sessions{', picture' if row['picture'] else ''}{'' if row['graphs'] else ', plain'}" for row in rows]
    left = [0.0] * len(rows)
    for stage in ("thinker", "talker", "vocoder"):
        widths = [row["busy"][stage] for row in rows]
        axis.barh(labels, widths, left=left, label=stage)
        left = [begin + width for begin, width in zip(left, widths, strict=True)]
    axis.axvline(UNIT_MS, color="black", linewidth=1)
    axis.invert_yaxis()
    axis.set_xlabel("ms of one speaking unit of all sessions, one stage after the other (1000: real time)")
    axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
