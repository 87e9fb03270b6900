"""Keys and values of the thinker in fp8 beside bf16: what is lost, what attention and whole steps take, how many sessions fit.

`python -m benchmarks.native.kv_precision` on a machine with a GPU; with `--tiny --device cpu` and TRITON_INTERPRET=1 a rehearsal.
Results are written part by part.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor

from benchmarks import report
from benchmarks.native import card as cards
from benchmarks.native.card import Card
from benchmarks.native.decoder_scenes import THINKER, TINY_THINKER, Placed, Scene, floor_of, pool_for, random_weights
from benchmarks.native.floors import Floor
from benchmarks.native.kv_errors import NAMES, errors
from benchmarks.native.timing import graphed
from minicpmo45.config import Config
from minicpmo45.memory_plan import SCALE_BYTES, STAGES, DType, Dtypes, memory_plan
from torch_kit.attention import PlainAttention
from torch_kit.decoder_weights import DecoderConfig
from torch_kit.fp8 import FP8
from torch_kit.fused_decoder import FusedDecoder
from torch_kit.kernels.page_writer import write_pages
from torch_kit.kernels.paged_attention import Launch, PagedAttention, launch
from torch_kit.pages import PagePool
from torch_kit.rope import Rope

PARTS = ("errors", "attention", "steps", "plan")
REPEATS = 16
"""Calls in one graph."""
COPIES = 4
"""Layers that calls take in turn, so that little of one is found in L2."""
TINY = replace(TINY_THINKER, head_dim=32)
"""Kernels read fp8 by twos."""
H200_BYTES = 149_000_000_000
WINDOW, FLOW_STEPS = 4096, 5
EXACT, WORSE = 1e-5, 1.5
"""As `decoder_kernels`."""
Row = dict[str, Any]


def kinds(device: torch.device) -> tuple[torch.dtype, torch.dtype]:
    """What is compared; the interpreter has no bf16."""
    return (torch.bfloat16 if device.type == "cuda" else torch.float32), FP8


def attention_floor(config: DecoderConfig, scene: Scene, kept: torch.dtype, served: torch.dtype) -> Floor:
    """Of one layer: keys and values with their scales, queries twice, what comes out."""
    vector = config.head_dim * kept.itemsize + (SCALE_BYTES if kept == FP8 else 0)
    lines = 3 * sum(scene.news) * config.heads * config.head_dim * served.itemsize
    return Floor(2 * scene.held * config.kv_heads * vector + lines, 4 * config.heads * config.head_dim * scene.seen)


def attention(config: DecoderConfig, scene: Scene, device: torch.device, card: Card) -> Iterator[Row]:
    """A row a dtype: error against fp32 over the same pages, microseconds a layer as served and in the best way tried."""
    served = kinds(device)[0]
    for kept in kinds(device):
        pool = pool_for(config, scene, kept, device, layers=COPIES)
        batch = Placed(scene, pool).batch
        query, prefix_query = (torch.randn(batch.size, config.heads, config.head_dim, device=device).to(served) for _ in range(2))
        out, oracle = torch.empty_like(query), PlainAttention(config.heads // config.kv_heads)

        def run(how: Launch, pool: PagePool = pool, given: tuple[Tensor, ...] = (query, prefix_query, out)) -> Callable[[int], None]:
            kernel = PagedAttention(batch, config.heads, config.kv_heads, config.head_dim, how)  # noqa: B023
            asked, prefix, made = given
            return lambda turn: kernel(batch, asked, prefix, pool.layer(turn), made, scales=pool.scale(turn))  # noqa: B023

        usual = launch(batch, config.heads, config.kv_heads)
        run(usual)(0)
        plan = oracle.plan(batch, pool.page)
        cache = pool.layer(0) if kept == FP8 else pool.layer(0).float()
        truth = oracle(plan, query.float(), prefix_query.float(), cache, pool.scale(0))[: batch.count]
        error = float((out[: batch.count] - truth).abs().max() / truth.abs().max())
        torchs = float(
            (oracle(plan, query, prefix_query, pool.layer(0), pool.scale(0))[: batch.count] - truth).abs().max() / truth.abs().max()
        )
        del truth, plan
        floor = attention_floor(config, scene, kept, served).ms(card) * 1000
        row: Row = {"scene": scene.name, "context": scene.context, "pages": NAMES[kept], "error": error, "torch error": torchs}
        row |= {"holds": error <= max(WORSE * torchs, EXACT), "floor us": floor, "us": _us(device, run(usual)), "best us": None, "best": ""}
        for how in _ways(usual) if device.type == "cuda" else ():
            try:
                us = _us(device, run(how))
            except Exception as failure:
                print(f"{how}: {type(failure).__name__}", flush=True)
                continue
            if us is not None and (row["best us"] is None or us < row["best us"]):
                row |= {"best us": us, "best": f"splits {how.splits}, warps {how.warps}, stages {how.stages}"}
        yield row | {"writing us": _writing(config, batch, pool, served)}


def _writing(config: DecoderConfig, batch: Any, pool: PagePool, served: torch.dtype) -> float | None:
    """Microseconds in which the new tokens' keys and values are written."""
    heads, device = config.heads + 2 * config.kv_heads, pool.device
    joined = torch.randn(batch.size, heads * config.head_dim, device=device).to(served)
    norm = torch.ones(config.heads + config.kv_heads, config.head_dim, device=device).to(served)
    query, prefix_query = (torch.empty(batch.size, config.heads, config.head_dim, dtype=served, device=device) for _ in range(2))
    rope = Rope(config.head_dim, config.rope_theta, device)

    def run(turn: int) -> None:
        write_pages(joined, norm, rope, batch, query, prefix_query, pool.layer(turn), config.rms_eps, pool.scale(turn))

    run(0)
    return _us(device, run)


def _ways(usual: Launch) -> list[Launch]:
    splits = sorted({max(usual.splits // 2, 1), usual.splits, usual.splits * 2})
    return [Launch(parts, warps, stages) for parts in splits for warps in (2, 4, 8) for stages in (2, 3, 4, 5)]


def _us(device: torch.device, call: Callable[[int], None]) -> float | None:
    def run() -> None:
        for turn in range(REPEATS):
            call(turn % COPIES)

    ms = graphed(device, run)
    return None if ms is None else ms * 1000 / REPEATS


def steps(config: DecoderConfig, scenes: list[Scene], device: torch.device, card: Card) -> Iterator[Row]:
    """Whole forwards in a graph, without embedding, head and draws."""
    served = kinds(device)[0]
    weights = random_weights(config, served, device)
    fused: FusedDecoder | None = None
    for scene in scenes:
        for kept in kinds(device):
            pool = pool_for(config, scene, kept, device, layers=config.layers)
            fused = fused or FusedDecoder(weights, config, pool)
            weights.clear()
            fused.pool = pool
            batch = Placed(scene, pool).batch
            inputs = torch.randn(batch.size, config.hidden_size, device=device).to(served)
            states = fused.forward(inputs, batch, only_sampled=True)
            ms = graphed(device, partial(fused.forward, inputs, batch, only_sampled=True))
            floor = floor_of(config, scene, served.itemsize)
            of_layer = attention_floor(config, scene, kept, served), attention_floor(config, scene, served, served)
            floor = Floor(floor.nbytes + config.layers * (of_layer[0].nbytes - of_layer[1].nbytes), floor.flops)
            row: Row = {"scene": scene.name, "context": scene.context, "pages": NAMES[kept], "finite": bool(states.isfinite().all())}
            yield row | {"pool GB": pool.bytes / 1e9, "floor ms": floor.ms(card), "ms": ms}
            del pool, batch
            fused.pool = pool_for(config, Scene("none", (1,), 1), kept, device, layers=1)
            if device.type == "cuda":
                torch.cuda.empty_cache()


def plan(device: torch.device) -> Iterator[Row]:
    """Sessions of three services on the card, and their bytes, at a window of 4096."""
    card_bytes = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else H200_BYTES
    for kv in get_args(DType)[1:]:
        made = memory_plan(card_bytes, STAGES, WINDOW, FLOW_STEPS, Dtypes(kv=kv), Config())
        thinker = made.stage("thinker")
        yield {
            "pages": kv,
            "GB a session": made.per_session / 1e9,
            "of the thinker": thinker.per_session / 1e9,
            "sessions": made.sessions,
            "planned GB": made.nbytes / 1e9,
            "card GB": card_bytes / 1e9,
        }


def sections(raw: Row) -> list[tuple[str, str]]:
    """Tables of the parts that there are."""
    card: Row = raw["card"]
    made = [
        ("Card", f"{card['name']}, torch {card['torch']}, {card['date']}; random weights, {raw['context']} tokens of context for errors")
    ]
    for title, part in (
        ("Final states and next words against fp32 throughout", "errors"),
        ("Attention of a step, one layer, microseconds in a graph", "attention"),
        ("Whole steps, ms", "steps"),
        (f"Memory plan, three services, window {WINDOW}, T={FLOW_STEPS}", "plan"),
    ):
        if rows := raw.get(part):
            header = list(dict.fromkeys(name for row in rows for name in row))
            made.append((title, report.table(header, [[_cell(row.get(name)) for name in header] for row in rows])))
    return made


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def measured(part: str, options: argparse.Namespace, device: torch.device, card: Card) -> Iterator[Row]:
    """Rows of a part, as they are made."""
    config = TINY if options.tiny else THINKER
    contexts = (40,) if options.tiny else (2048, 4096)
    scenes = [Scene(f"{count} step", (1,) * count, context) for count in options.sessions for context in contexts]
    if part == "errors":
        for sharp in (False, True):
            yield from errors(config, 500 if options.tiny else Config().llm.vocab_size, options.context, device, sharp=sharp)
    elif part == "attention":
        for scene in scenes:
            yield from attention(config, scene, device, card)
    elif part == "steps":
        yield from steps(config, scenes, device, card)
    else:
        yield from plan(device)


def main(arguments: list[str] | None = None) -> Row:
    """Runs what the arguments name; the raw results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a tiny decoder: a rehearsal")
    parser.add_argument("--sessions", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--context", type=int, default=2048, help="tokens, of the errors")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--name", default="kv_precision", help="of the results")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    if device.type == "cpu":
        from tests.support.interpreter import mend_interpreter

        mend_interpreter()
    card = cards.measure(device)
    raw: Row = {"card": {"name": card.name, "torch": card.torch, "date": card.date}, "context": options.context}
    with torch.no_grad():
        for part in options.parts:
            rows = raw.setdefault(part, [])
            for row in measured(part, options, device, card):
                rows.append(row)
                print(row, flush=True)
                report.write(options.name, "Keys and values in fp8 beside bf16", sections(raw), raw)
    return raw


if __name__ == "__main__":
    main()
