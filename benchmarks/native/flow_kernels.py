"""The vocoder's fused kernels, each beside its floor and torch; whole chunks of the flow, HiFT, and what each precision loses.

`python -m benchmarks.native.flow_kernels` on a machine with a GPU; with `--tiny --device cpu` and TRITON_INTERPRET=1 a rehearsal. Results
are written part by part.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import msgspec
import torch
from torch import Tensor

from benchmarks import report
from benchmarks.native import card as cards
from benchmarks.native import flow_chunks, hift_windows
from benchmarks.native.card import Card
from benchmarks.native.flow_cases import Case, Inputs, cases
from benchmarks.native.timing import graphed
from minicpmo45.config import FlowConfig, HiftConfig, tiny
from vocoder_svc.minicpmo45.kernels.tiles import CUBLAS

REPEATS, SPENT = 48, 6400
"""Calls in one graph (a single one is over before the host knows), at most, and that times sessions."""
COPIES = 16
EXACT, WORSE = 1e-5, 1.5
"""fp32 may differ so much, in parts of the largest value; half precision may be so many times as far from the truth as torch's."""
TF32_ERROR = 4e-3
TORCH_SESSIONS = 32
"""Above them torch is timed only if asked for."""
KINDS = {"fp32": (torch.float32, False), "tf32": (torch.float32, True), "bf16": (torch.bfloat16, False), "fp16": (torch.float16, False)}
PARTS = ("lost", "chunks", "kernels", "hift")
Row = dict[str, Any]


def measure(
    config: FlowConfig,
    sessions: list[int],
    prompts: list[int],
    device: torch.device,
    card: Card,
    kinds: list[str],
    copies: int = COPIES,
    *,
    torchs: bool = False,
) -> list[Row]:
    """One row a kernel, shape and precision; each is checked before it is timed. `torchs`: torch is timed at any size."""
    rows = []
    for count in sessions:
        for kind in kinds:
            dtype, tf32 = KINDS[kind]
            draw = Inputs(config, count, device, dtype, tf32=tf32, copies=min(copies, 4 if count > TORCH_SESSIONS else copies))
            for place, prompt in enumerate(prompts):
                for case in cases(draw, prompt):
                    if place and case.kernel != "attention":
                        continue
                    row = {"sessions": count, "kind": kind, "prompt": prompt, **measured(case, draw, card, torchs=torchs)}
                    rows.append(row)
                    print(row, flush=True)
    return rows


def measured(case: Case, draw: Inputs, card: Card, *, torchs: bool) -> Row:
    """Errors against torch's fp32, in parts of its largest value; microseconds in a graph: with the table's tile, with the best of those
    tried that are right, and torch's."""
    truth = case.plain(0, torch.float32)
    torch_error = _error(case.plain(0, draw.dtype), truth)
    bound = {"fp32": EXACT, "tf32": TF32_ERROR}.get(draw.kind, max(EXACT, WORSE * torch_error))
    ours = _error(case.fused(0, None), truth)
    row: Row = {"kernel": case.kernel, "error": ours, "torch_error": torch_error, "holds": ours <= bound}
    us = _us(draw, case, lambda copy: case.fused(copy, None))
    row |= {"us": us, "floor_us": case.floor.ms(card) * 1000}
    if torchs or draw.sessions <= TORCH_SESSIONS:
        row["torch_us"] = _us(draw, case, lambda copy: case.plain(copy, draw.dtype))
    tried: dict[str, float] = {}
    for each in case.tiles if draw.device.type == "cuda" else ():
        try:
            right = _error(case.fused(0, each), truth) <= bound
            found = _us(draw, case, lambda copy, each=each: case.fused(copy, each)) if right else None  # type: ignore[misc]
        except Exception as error:
            # a tile may want more shared memory than there is
            print(f"{case.kernel}: {each}: {type(error).__name__}", flush=True)
            continue
        if found is None:
            print(f"{case.kernel}: {each}: wrong", flush=True)
        else:
            tried[_sizes(each)] = round(found, 2)
    order = sorted(tried.items(), key=lambda item: item[1])
    row |= {"best_us": order[0][1] if order else us, "best": order[0][0] if order else "table"}
    return {**row, "next": order[1:4]}


def _sizes(tile: Any) -> str:
    return "cuBLAS" if tile == CUBLAS else "x".join(str(size) for size in msgspec.structs.astuple(tile))


def _us(draw: Inputs, case: Case, call: Callable[[int], Tensor]) -> float | None:
    repeats = max(4, min(REPEATS, SPENT // draw.sessions))

    def run() -> None:
        for turn in range(repeats):
            call(turn % case.copies)

    ms = graphed(draw.device, run)
    return None if ms is None else ms * 1000 / repeats


def _error(found: Tensor, truth: Tensor) -> float:
    whole = found.sum(0) if found.dim() > truth.dim() else found
    error = float((whole.float() - truth).abs().max() / truth.abs().max())
    return math.inf if math.isnan(error) else error


def sections(raw: Row) -> list[tuple[str, str]]:
    card: Row = raw["card"]
    made = [("Card", f"{card['name']}, torch {card['torch']}, {card['date']}")]
    for title, part in (
        ("Kernels, microseconds a call in a graph", "kernels"),
        ("Chunks of the flow, ms in a graph", "chunks"),
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
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 128])
    parser.add_argument("--prompts", type=int, nargs="+", default=[250, 840])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=["tf32", "bf16", "fp16"])
    parser.add_argument("--torch", action="store_true", help="time torch's operations and plain chunks at any size")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--name", default="flow_kernels", help="of the results")
    options = parser.parse_args(arguments)
    # the interpreter has fp32 alone
    kinds = ["fp32"] if options.device == "cpu" else options.kinds
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
            began = time.perf_counter()
            if part == "kernels":
                copies = 2 if options.tiny else COPIES
                raw[part] = measure(config, options.sessions, options.prompts, device, card, kinds, copies, torchs=options.torch)
            if part == "lost":
                raw[part] = flow_chunks.lost(config, options.prompts[0], options.steps, device, kinds)
            if part == "chunks":
                for count in options.sessions:
                    for prompt in options.prompts:
                        for row in flow_chunks.timed(config, count, prompt, options.steps, card, device, kinds, plain=options.torch):
                            raw[part].append(row)
                            print(row, flush=True)
            if part == "hift":
                for count in options.sessions:
                    raw[part] += hift_windows.timed(tiny().hift if options.tiny else HiftConfig(), count, card, device)
            print(f"{part}: {time.perf_counter() - began:.0f} s", flush=True)
            report.write(options.name, "The vocoder's kernels", sections(raw), raw)
    return raw


if __name__ == "__main__":
    main()
