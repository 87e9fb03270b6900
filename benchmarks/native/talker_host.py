"""The talker's step: what its host costs alone, the sampler's kernel beside its floor and torch, and codes as they are served.

`python -m benchmarks.native.talker_host`. Without CUDA: the host alone, at stubs instead of networks, and with TRITON_INTERPRET=1 a
rehearsal of the kernel.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from parley_stage.v1 import stage_pb2
from torch import Tensor

from benchmarks import report
from benchmarks.native import card as cards
from benchmarks.native.card import Card
from benchmarks.native.house import Recording
from benchmarks.native.timing import graphed, wait
from minicpmo45.config import TalkerConfig, tiny
from minicpmo45.random_checkpoint import write
from stage_kit import Append, Label
from talker_svc.minicpmo45.engine import MiniCpmTalkerEngine
from talker_svc.minicpmo45.sampler import CodeSampler, Manner, UnitRule
from talker_svc.minicpmo45.settings import BURST, MiniCpmTalkerSettings
from talker_svc.minicpmo45.shapes import TiledShapes
from torch_kit.graphs import Graphs

TEXT_TOKENS = 4
UNITS, SKIPPED = 16, 4
REPEATS = 32
Row = dict[str, Any]


class NoNetworks(Graphs):
    """Draws code 7 of everything at once."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.on = True

    def __call__(
        self, key: Hashable, function: Callable[..., Any], inputs: tuple[Tensor, ...], blank: Callable[[], tuple[Tensor, ...]]
    ) -> Any:
        assert isinstance(key, tuple)
        kind, *sizes = key
        return torch.full((sizes[-1], sizes[0]) if kind == "codes" else (sizes[0],), 7)


def host(checkpoint: Path, sessions: int, burst: int) -> Row:
    """CPU microseconds of a step of the engine, per step and session."""
    engine = MiniCpmTalkerEngine(MiniCpmTalkerSettings(checkpoint=checkpoint, slots=sessions, burst=burst))
    engine.load()
    settings = engine._settings
    engine._speaker.graphs = NoNetworks()
    engine._speaker._shapes = TiledShapes(sessions, engine._pages, settings.thought_tokens + 2, torch.device("cpu"))
    first, later, _ = spoken(engine, sessions, tiny().talker, clock=time.process_time)
    return {
        "sessions": sessions,
        "codes": burst,
        "us of an opening": first * 1e6,
        "us of a burst": later * 1e6,
        "us a session": later * 1e6 / sessions,
    }


def spoken(
    engine: MiniCpmTalkerEngine, sessions: int, config: TalkerConfig, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, float, float]:
    """Seconds (median) of a first step of a unit, of the others, and of whole units, with nothing waited for in between."""
    slots = [Recording(f"talker {row}", engine.validate({}), lambda: None) for row in range(sessions)]
    for slot in slots:
        engine.open(slot)
    first: list[float] = []
    later: list[float] = []
    units: list[float] = []
    for unit in range(UNITS):
        thought = payload(config, unit)
        for slot in slots:
            engine.receive(slot, Append("thinker", unit + 1, Label(0, 1, "t1"), False, thought))
        wait(engine._device)
        began, step = clock(), 0
        while ready := [slot for slot in slots if engine.ready(slot) is not None]:
            started = clock()
            engine.step(ready)
            if unit >= SKIPPED:
                (later if step else first).append(clock() - started)
            step += 1
        wait(engine._device)
        if unit >= SKIPPED:
            units.append(clock() - began)
    for slot in slots:
        engine.close(slot)
    return statistics.median(first), statistics.median(later), statistics.median(units)


def payload(config: TalkerConfig, seed: int) -> stage_pb2.Payload:
    """A unit's words, hidden states in bf16."""
    draw = np.random.default_rng(seed)
    hidden = torch.from_numpy(draw.standard_normal((TEXT_TOKENS, config.llm_dim), dtype=np.float32)).bfloat16()
    data = hidden.view(torch.int16).numpy().tobytes()
    tensor = stage_pb2.Tensor(dtype=stage_pb2.D_TYPE_BF16, shape=hidden.shape, data=data)
    ids = draw.integers(0, 151_643, TEXT_TOKENS).tolist()
    return stage_pb2.Payload(thought=stage_pb2.Thought(token_ids=ids, hidden=tensor))


def sampler(rows: int, device: torch.device, card: Card, config: TalkerConfig) -> Row:
    """The kernel against torch: equal codes in how many of 64 steps, microseconds of both in a graph, and of the bytes alone."""
    from talker_svc.minicpmo45.fused_sampler import FusedCodeSampler
    from talker_svc.minicpmo45.kernels.code_draw import draw_codes

    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    table = torch.randn(config.codes, config.hidden_size, device=device).to(dtype)
    logits = (3 * torch.randn(rows, config.codes, device=device)).to(dtype)
    given = torch.arange(rows, device=device)
    plain, fused = (kind(rows, codes=config.codes, min_piece=5, device=device) for kind in (CodeSampler, FusedCodeSampler))
    for made in (plain, fused):
        for row in range(rows):
            made.tune(row, Manner(seed=row))
        made.begin(given, torch.tensor([UnitRule(3, 200, False).fields] * rows, device=device))
    steps = 64 if device.type == "cuda" else 2
    equal = sum(int((plain.sample(given, logits) == fused.sample(given, logits)).sum()) for _ in range(steps)) / (steps * rows)
    read = rows * (config.codes + 2 * config.hidden_size) * dtype.itemsize
    found: Row = {"rows": rows, "equal share": equal, "floor us": read / card.copy_bytes_s * 1e6}
    codes, embeddings = torch.empty(rows, dtype=torch.int64, device=device), table.new_empty((rows, table.shape[1]))

    def us(call: Callable[[], object], repeats: int) -> float | None:
        ms = graphed(device, lambda: [call() for _ in range(repeats)])
        return None if ms is None else ms * 1000 / repeats

    found["us"] = us(lambda: fused.sample_next(given, logits, table), REPEATS)
    found["torch us"] = us(lambda: plain.sample_next(given, logits, table), 2)
    for warps in (4, 8, 16, 32) if device.type == "cuda" else (4,):
        found[f"us, {warps} warps"] = us(
            lambda warps=warps: draw_codes(fused._drawing, given, logits, codes, table, embeddings, warps=warps),  # type: ignore[misc]
            REPEATS,
        )
    return found


def served(checkpoint: Path, sessions: list[int], device: str, kernels: str, burst: int, *, ahead: bool, slots: int) -> list[Row]:
    """Milliseconds a code of whole units on the device: all sessions in step, words to the last code."""
    given: dict[str, Any] = {"checkpoint": checkpoint, "device": device, "kernels": kernels, "burst": burst, "ahead": ahead}
    engine = MiniCpmTalkerEngine(MiniCpmTalkerSettings(slots=slots, **given))
    engine.load()
    rows = []
    for count in sessions:
        unit = spoken(engine, count, engine._config)[2]
        rows.append(
            {"sessions": count, "kernels": kernels, "codes": burst, "ahead": ahead, "ms a unit": unit * 1e3, "ms a code": unit * 40}
        )
        print(rows[-1], flush=True)
    return rows


def main(arguments: list[str] | None = None) -> Row:
    """Runs what the machine can; the raw results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--checkpoint", type=Path, help="of released sizes: codes as they are served, too")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 32, 64, 128])
    parser.add_argument("--bursts", type=int, nargs="+", default=[BURST])
    parser.add_argument("--name", default="talker_host", help="of the results")
    os.environ["PARLEY_STAGES_ON_CARD"] = "talker"
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    if device.type == "cpu":
        from tests.support.interpreter import mend_interpreter

        mend_interpreter()
    card = cards.measure(device)
    raw: Row = {"card": {"name": card.name, "torch": card.torch, "date": card.date}, "host": [], "sampler": [], "served": []}

    def keep(part: str, rows: list[Row]) -> None:
        raw[part] += rows
        print(*rows, sep="\n", flush=True)
        report.write(options.name, "The talker's step", sections(raw), raw)

    with torch.no_grad():
        config = TalkerConfig() if device.type == "cuda" else tiny().talker
        for rows in options.sessions if device.type == "cuda" else (2,):
            keep("sampler", [sampler(rows, device, card, config)])
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder) / "tiny", tiny(), seed=45)
            for sessions in options.sessions:
                keep("host", [host(Path(folder) / "tiny", sessions, burst) for burst in options.bursts])
        if options.checkpoint is not None:
            for burst in options.bursts:
                for ahead in (False, True):
                    most = max(options.sessions)
                    keep("served", served(options.checkpoint, options.sessions, options.device, "fused", burst, ahead=ahead, slots=most))
    return raw


def sections(raw: Row) -> list[tuple[str, str]]:
    """A table of each part that there is."""
    made = [("Card", f"{raw['card']['name']}, torch {raw['card']['torch']}, {raw['card']['date']}")]
    titles = {"host": "The host alone, CPU time", "sampler": "The sampler's kernel", "served": "Codes as they are served"}
    for part, title in titles.items():
        if rows := raw[part]:
            header = list(dict.fromkeys(name for row in rows for name in row))
            made.append((title, report.table(header, [[_cell(row.get(name)) for name in header] for row in rows])))
    return made


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
