"""The vocoder's fused kernels, each beside its floor and torch; whole chunks of the flow, HiFT, and what each precision loses.

`python -m benchmarks.native.flow_kernels` on a machine with a GPU; with `--tiny --device cpu` and TRITON_INTERPRET=1 a rehearsal. Results
are written part by part.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks import report
from benchmarks.native import card as cards
from benchmarks.native import flow_chunks, hift_windows
from benchmarks.native.card import Card
from benchmarks.native.flow_cases import Case, Inputs, cases
from benchmarks.native.timing import graphed
from minicpmo45.config import FlowConfig, HiftConfig, tiny

REPEATS = 48
"""Calls in one graph: a single one is over before the host knows."""
COPIES = 16
EXACT, WORSE = 1e-5, 1.5
"""fp32 may differ so much, in parts of the largest value; bf16 may be so many times as far from the truth as torch's bf16."""
TF32_ERROR = 4e-3
PARTS = ("lost", "kernels", "chunks", "hift")
Row = dict[str, Any]


def measure(
    config: FlowConfig, sessions: list[int], prompts: list[int], device: torch.device, card: Card, copies: int = COPIES
) -> list[Row]:
    """One row a kernel, shape and precision; each is checked before it is timed. The interpreter has fp32 alone."""
    kinds = [(torch.float32, False)]
    if device.type == "cuda":
        kinds += [(torch.float32, True), (torch.bfloat16, False)]
    rows = []
    for count in sessions:
        for dtype, tf32 in kinds:
            draw = Inputs(config, count, device, dtype, tf32=tf32, copies=copies)
            for place, prompt in enumerate(prompts):
                for case in cases(draw, prompt):
                    if place and case.kernel != "attention":
                        continue
                    rows.append({"sessions": count, "kind": draw.kind, "prompt": prompt, **checked(case, draw), **timed(case, draw, card)})
                    print(rows[-1], flush=True)
    return rows


def checked(case: Case, draw: Inputs) -> Row:
    """Errors against the truth in fp64, in parts of its largest value."""
    truth = case.plain(0, torch.float64)
    ours = _error(case.fused(0, None), truth)
    torchs = _error(case.plain(0, draw.dtype), truth)
    bound = {"fp32": EXACT, "tf32": TF32_ERROR, "bf16": max(EXACT, WORSE * torchs)}[draw.kind]
    return {"kernel": case.kernel, "error": ours, "torch_error": torchs, "holds": ours <= bound}


def timed(case: Case, draw: Inputs, card: Card) -> Row:
    """Microseconds in a graph: with the table's tile, with the best of those tried, and torch's."""
    found: Row = {"us": _us(draw, case, lambda copy: case.fused(copy, None)), "floor_us": case.floor.ms(card) * 1000}
    found["torch_us"] = _us(draw, case, lambda copy: case.plain(copy, draw.dtype))
    best, tile = found["us"], "table"
    for each in case.tiles if draw.device.type == "cuda" else ():
        try:
            us = _us(draw, case, lambda copy, each=each: case.fused(copy, each))  # type: ignore[misc]
        except Exception as error:
            # a tile may want more shared memory than there is
            print(f"{case.kernel}: {each}: {type(error).__name__}", flush=True)
            continue
        if us is not None and best is not None and us < best:
            best, tile = us, str(each)
    return {**found, "best_us": best, "best": tile}


def _us(draw: Inputs, case: Case, call: Callable[[int], Tensor]) -> float | None:
    def run() -> None:
        for turn in range(REPEATS):
            call(turn % case.copies)

    ms = graphed(draw.device, run)
    return None if ms is None else ms * 1000 / REPEATS


def _error(found: Tensor, truth: Tensor) -> float:
    error = float((found.double() - truth).abs().max() / truth.abs().max())
    return math.inf if math.isnan(error) else error


def sections(raw: Row) -> list[tuple[str, str]]:
    card: Row = raw["card"]
    made = [("Card", f"{card['name']}, torch {card['torch']}, {card['date']}")]
    for title, part in (
        ("Kernels, microseconds a call in a graph", "kernels"),
        ("Whole chunks of the flow, ms", "chunks"),
        ("HiFT, ms", "hift"),
        ("Error of mels in parts of their spread, twelve chunks", "lost"),
    ):
        rows = raw.get(part)
        if rows:
            header = list(dict.fromkeys(name for row in rows for name in row))
            made.append((title, report.table(header, [[_cell(row.get(name, "")) for name in header] for row in rows])))
    return made


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main(arguments: list[str] | None = None) -> Row:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="the tiny flow: a rehearsal")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument("--prompts", type=int, nargs="+", default=[250, 840])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--name", default="flow_kernels", help="of the results")
    options = parser.parse_args(arguments)
    device, config = torch.device(options.device), tiny().flow if options.tiny else FlowConfig()
    if device.type == "cpu":
        # only a rehearsal needs it
        from tests.support.interpreter import mend_interpreter

        mend_interpreter()
    card = cards.measure(device)
    raw: Row = {"card": {"name": card.name, "torch": card.torch, "date": card.date}}
    with torch.no_grad():
        for part in options.parts:
            raw[part] = []
            if part == "kernels":
                raw[part] = measure(config, options.sessions, options.prompts, device, card, 2 if options.tiny else COPIES)
            if part == "lost":
                for sizes, prompt in {tiny().flow: 110, config: options.prompts[0]}.items():
                    for row in flow_chunks.lost(sizes, prompt, options.steps, device):
                        raw[part].append({"width": sizes.dit_hidden, **row})
            if part == "chunks":
                for count in options.sessions:
                    for prompt in options.prompts:
                        raw[part] += flow_chunks.timed(config, count, prompt, options.steps, card, device)
            if part == "hift":
                for count in options.sessions:
                    raw[part] += hift_windows.timed(tiny().hift if options.tiny else HiftConfig(), count, card, device)
            report.write(options.name, "The vocoder's kernels", sections(raw), raw)
    return raw


if __name__ == "__main__":
    main()
