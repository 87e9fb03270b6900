"""The decoder's fused kernels: each beside its floor and torch, then whole forwards of thinker and talker, then what bf16 loses.

`python -m benchmarks.native.decoder_kernels` on a machine with a GPU; with `--tiny --device cpu` and TRITON_INTERPRET=1 a rehearsal.
Results are written part by part.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from benchmarks import report
from benchmarks.native import card as cards
from benchmarks.native.card import Card
from benchmarks.native.copies import copied_us
from benchmarks.native.decoder_cases import Case, cases
from benchmarks.native.decoder_products import LINES, TYPES, products
from benchmarks.native.decoder_scenes import (
    TALKER,
    THINKER,
    TINY_TALKER,
    TINY_THINKER,
    Placed,
    Scene,
    floor_of,
    narrowed_weights,
    pool_for,
    random_weights,
    scenes,
)
from benchmarks.native.timing import graphed, kernels, timed
from torch_kit.decoder import Decoder
from torch_kit.decoder_weights import DecoderConfig
from torch_kit.fp8 import FP8
from torch_kit.fused_decoder import FusedDecoder
from torch_kit.kernels.thin_product import MOST_LINES
from torch_kit.pages import PAGE, PagePool

CACHE_BYTES = 400e6
"""What the copies of a cache take at least: several times the L2."""
EXACT, WORSE = 1e-5, 1.5
"""fp32 may differ so much, in parts of the largest value; bf16 may be so many times as far from the truth as torch's bf16."""
MANY = 64
"""Sessions from which on torch's attention, which copies all pages, is not timed unless asked for."""
PARTS = ("lost", "whole", "products", "kernels")
Row = dict[str, Any]
Decoders = dict[str, DecoderConfig]
Weights = dict[str, Tensor]


def dtype_on(device: torch.device) -> torch.dtype:
    """The interpreter has fp32 alone."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def lost(decoders: Decoders, device: torch.device) -> list[Row]:
    """Two layers of each width: error of hidden states and pages against the plain path in fp32, in parts of their spread."""
    rows = []
    for name, config in decoders.items():
        scene, small = Scene("2 take 20, 2 step", (20, 20, 1, 1), 70), replace(config, layers=2)
        truth = random_weights(small, torch.float32, device)
        pool = pool_for(small, scene, torch.float32, device, layers=2)
        start = pool.storage.clone()
        placed = Placed(scene, pool)
        inputs = torch.randn(sum(scene.news), small.hidden_size, device=device)

        def run(model: type[Decoder | FusedDecoder], kind: torch.dtype) -> tuple[Tensor, Tensor]:
            pool.storage = start.to(kind)  # noqa: B023
            made = model({name: tensor.to(kind) for name, tensor in truth.items()}, small, pool)  # noqa: B023
            hidden = made.forward(inputs.to(kind), placed.batch)[: len(inputs)]  # noqa: B023
            return hidden.double(), pool.storage[:, 1:].double()  # noqa: B023

        exact, plain, fused = run(Decoder, torch.float32), run(Decoder, dtype_on(device)), run(FusedDecoder, dtype_on(device))
        for part, true, theirs, ours in zip(("states", "pages"), exact, plain, fused, strict=True):
            error, torchs = _spread(ours - true, true), _spread(theirs - true, true)
            holds = error <= max(WORSE * torchs, EXACT)
            rows.append({"decoder": name, "what": part, "error": error, "torch error": torchs, "holds": holds})
            print(rows[-1], flush=True)
        if name == "thinker":
            rows += scaled_lost(small, truth, placed, pool, start, inputs)
    return rows


def scaled_lost(config: DecoderConfig, truth: Weights, placed: Placed, pool: PagePool, start: Tensor, inputs: Tensor) -> list[Row]:
    """Final states with matrices in e4m3, in each manner of their products: `error` against plain fp32 with the same rounding, `loss`
    against plain fp32 without it."""
    kind, scaled, rows = dtype_on(pool.device), narrowed_weights(truth, config), []

    def states(make: type[Decoder | FusedDecoder], given: Weights, dtype: torch.dtype, **how: Any) -> Tensor:
        pool.storage = start.to(dtype)
        kept = {name: tensor if tensor.dtype == FP8 or name.endswith(".scale") else tensor.to(dtype) for name, tensor in given.items()}
        return make(kept, config, pool, **how).forward(inputs.to(dtype), placed.batch)[: len(inputs)].double()

    exact = states(Decoder, truth, torch.float32)
    for what, rounded, how in (
        ("states, e4m3, thin", False, {"thin_tokens": MOST_LINES}),
        ("states, e4m3, widened", False, {"thin_tokens": 0}),
        ("states, both e4m3", True, {"thin_tokens": 0, "widened_tokens": 0}),
    ):
        oracle, theirs = (states(Decoder, scaled, dtype, rounded=rounded) for dtype in (torch.float32, kind))
        ours = states(FusedDecoder, scaled, kind, **how)
        error, torchs, loss = _spread(ours - oracle, oracle), _spread(theirs - oracle, oracle), _spread(ours - exact, exact)
        # what lies at a border of rounding goes to either side
        holds = error <= max(WORSE * torchs, loss / 20 if rounded else EXACT)
        rows.append({"decoder": "thinker", "what": what, "error": error, "torch error": torchs, "holds": holds, "loss": loss})
        print(rows[-1], flush=True)
    return rows


def alone(name: str, config: DecoderConfig, scene: Scene, device: torch.device, card: Card, *, plain: bool) -> list[Row]:
    """One row a kernel; each is checked before it is timed. `plain`: torch's attention is timed for many sessions, too."""
    dtype = dtype_on(device)
    page = scene.pages * len(scene.news) * 2 * config.kv_heads * PAGE * config.head_dim * dtype.itemsize
    layers = min(max(math.ceil(CACHE_BYTES / page), 1), 16) if device.type == "cuda" else 2
    pool = pool_for(config, scene, dtype, device, layers=layers)
    placed = Placed(scene, pool)
    timed_plain = plain or len(scene.news) < MANY
    facts = {"decoder": name, "scene": scene.name, "context": scene.context, "shape": "x".join(map(str, placed.batch.shape))}
    rows = []
    for case in cases(config, scene, placed, pool):
        raw = {**checked(case, placed.batch.count, dtype), **raced(case, dtype, device, card, plain=timed_plain)}
        rows.append({**facts, "kernel": case.kernel, **raw})
        print(rows[-1], flush=True)
        del case
        freed(device)
    return rows


def freed(device: torch.device) -> None:
    """What nobody holds any more goes back to the card: pools of graphs that are gone serve no others."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def checked(case: Case, count: int, dtype: torch.dtype) -> Row:
    """Errors against torch in fp32, in parts of its largest value; nothing where torch needs more memory than there is."""
    try:
        truth = case.plain(0, torch.float32)[:count]
    except torch.OutOfMemoryError:
        return {"error": None, "torch error": None, "holds": None}
    error, torchs = (_largest(made[:count] - truth, truth) for made in (case.fused(0, None), case.plain(0, dtype)))
    return {"error": error, "torch error": torchs, "holds": error <= max(WORSE * torchs, EXACT)}


def raced(case: Case, dtype: torch.dtype, device: torch.device, card: Card, *, plain: bool) -> Row:
    """Microseconds in a graph: as served, the best of the ways tried, and torch's if `plain`."""
    served = copied_us(device, lambda copy: case.fused(copy, None), case.copies)
    found: Row = {"us": served, "floor us": case.floor.ms(card) * 1000, "torch us": None}
    if plain:
        try:
            found["torch us"] = copied_us(device, lambda copy: case.plain(copy, dtype), case.copies)
        except torch.OutOfMemoryError:
            print(f"{case.kernel}: no memory for torch", flush=True)
    best, way = served, "served"
    for each in case.ways if device.type == "cuda" else ():
        try:
            us = copied_us(device, lambda copy, each=each: case.fused(copy, each), case.copies)  # type: ignore[misc]
        except Exception as error:
            # a way may want more shared memory than there is
            print(f"{case.kernel}: {each}: {type(error).__name__}", flush=True)
            continue
        if us is not None and best is not None and us < best:
            best, way = us, str(each)
    return {**found, "best us": best, "best": way}


def whole(
    name: str, config: DecoderConfig, wanted: list[Scene], device: torch.device, card: Card, types: Collection[str], *, plain: bool
) -> list[Row]:
    """Forwards in a graph, with the last norm of rows that sample alone and without embedding and head. `types`: of matrices, see `TYPES`;
    e4m3 of the thinker alone. `plain`: torch's beside them."""
    dtype = dtype_on(device)
    largest = max(wanted, key=lambda scene: scene.pages * len(scene.news))
    pool = pool_for(config, largest, dtype, device, layers=config.layers)
    weights, rows = random_weights(config, dtype, device), []
    for kind in TYPES:
        if kind not in types or (kind == "e4m3" and name != "thinker"):
            continue
        given = narrowed_weights(weights, config) if kind == "e4m3" else weights
        fused, oracle = FusedDecoder(given, config, pool), Decoder(given, config, pool) if plain else None
        for scene in wanted:
            rows.append({"decoder": name, "matrices": kind, **forwards(fused, oracle, scene, kind, device, card)})
            print(rows[-1], flush=True)
        del fused, oracle, given
        freed(device)
    return rows


def forwards(fused: FusedDecoder, oracle: Decoder | None, scene: Scene, kind: str, device: torch.device, card: Card) -> Row:
    """One scene: as served, and in other manners of the products."""
    placed, dtype, config = Placed(scene, fused.pool), dtype_on(device), fused.config
    batch, inputs = placed.batch, torch.randn(placed.batch.size, config.hidden_size, device=device).to(dtype)

    def run() -> Tensor:
        return fused.forward(inputs, batch, only_sampled=True)

    ms, floor = graphed(device, run), floor_of(config, scene, dtype.itemsize, weight=1 if kind == "e4m3" else None).ms(card)
    row: Row = {"scene": scene.name, "context": scene.context, "shape": "x".join(map(str, batch.shape)), "ms": ms}
    row |= {"floor ms": floor, "times floor": None if ms is None else ms / floor, "kernels": kernels(device, run)[0]}
    row["without graph ms"] = statistics.median(timed(device, run, 1 if ms is None else 5, 1))
    ways = {"thin ms": (MOST_LINES, 0)} if batch.size <= MOST_LINES else {}
    if kind == "bf16":
        ways |= {"library ms": (0, 0)} if ways else {}
    else:
        ways |= ({"widened ms": (0, MOST_LINES)} if ways else {}) | {"rounded ms": (0, 0)}
    for what, tokens in ways.items():
        served, (fused.thin_tokens, fused.widened_tokens) = (fused.thin_tokens, fused.widened_tokens), tokens
        row[what] = graphed(device, run)
        fused.thin_tokens, fused.widened_tokens = served
    if oracle is not None:
        row["torch ms"] = graphed(device, lambda: oracle.forward(inputs, batch))
    placed.release()
    return row


def _spread(error: Tensor, truth: Tensor) -> float:
    return _number(error.square().mean().sqrt() / truth.std())


def _largest(error: Tensor, truth: Tensor) -> float:
    return _number(error.abs().max() / truth.abs().max())


def _number(value: Tensor) -> float:
    return math.inf if bool(value.isnan()) else float(value)


def sections(raw: Row) -> list[tuple[str, str]]:
    """Tables of the parts that there are."""
    card: Row = raw["card"]
    made = [("Card", f"{card['name']}, torch {card['torch']}, {card['date']}")]
    for title, part in (
        ("Errors of two layers against plain fp32, in parts of the spread", "lost"),
        ("Whole forwards, ms", "whole"),
        ("Products, microseconds a call in a graph", "products"),
        ("Kernels, microseconds a call in a graph", "kernels"),
    ):
        if rows := raw.get(part):
            header = list(dict.fromkeys(name for row in rows for name in row))
            made.append((title, report.table(header, [[cell(row.get(name)) for name in header] for row in rows])))
    return made


def cell(value: object) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def main(arguments: list[str] | None = None) -> Row:
    """Runs what the arguments name; the raw results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny decoders: a rehearsal")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 8, 32, 64, 128])
    parser.add_argument("--decoders", nargs="+", choices=("thinker", "talker"), default=["thinker", "talker"])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--types", nargs="+", choices=TYPES, default=TYPES, help="of matrices, in products and whole forwards")
    parser.add_argument("--lines", type=int, nargs="+", default=LINES, help="of the products")
    parser.add_argument("--served", action="store_true", help="no other ways to run the thin products: they must be compiled")
    parser.add_argument("--plain", action="store_true", help="whole forwards in plain torch, and its attention for many sessions, too")
    parser.add_argument("--name", default="decoder_kernels", help="of the results")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    if device.type == "cpu":
        from tests.support.interpreter import mend_interpreter

        mend_interpreter()
    served = {"thinker": TINY_THINKER, "talker": TINY_TALKER} if options.tiny else {"thinker": THINKER, "talker": TALKER}
    decoders = {name: served[name] for name in options.decoders}
    card = cards.measure(device)
    raw: Row = {"card": {"name": card.name, "torch": card.torch, "date": card.date}}
    with torch.no_grad():
        for part in options.parts:
            rows = raw.setdefault(part, [])
            if part == "lost":
                rows += lost(decoders, device)
            elif part == "products":
                rows += products(decoders, device, card, tuple(options.lines), options.types, tried=not options.served)
            for name, config in decoders.items() if part in ("whole", "kernels") else ():
                wanted = list(scenes(name, options.sessions, tiny=options.tiny))
                if part == "whole":
                    rows += whole(name, config, wanted, device, card, options.types, plain=options.plain)
                for scene in wanted if part == "kernels" else ():
                    rows += alone(name, config, scene, device, card, plain=options.plain)
                    freed(device)
                report.write(options.name, "The decoder's kernels", sections(raw), raw)
            report.write(options.name, "The decoder's kernels", sections(raw), raw)
            freed(device)
    return raw


if __name__ == "__main__":
    main()
