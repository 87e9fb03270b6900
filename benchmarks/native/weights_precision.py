"""Matrices of the thinker's blocks in e4m3 beside bf16: what is lost, and how many sessions fit.

    python -m benchmarks.native.weights_precision                                         # on a machine with a GPU, 36 layers
    python -m benchmarks.native.weights_precision --device cpu --layers 4 --context 256   # full width, few layers
    python -m benchmarks.native.weights_precision --device cpu --width 512 --context 128  # all layers, of an eighth of the width
    python -m benchmarks.native.weights_precision --device cpu --tiny                     # a rehearsal

What products and whole steps take is `decoder_kernels --parts products whole`. Results are written part by part.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import torch

from benchmarks import report
from benchmarks.native import card as cards
from benchmarks.native.decoder_scenes import THINKER, TINY_THINKER
from benchmarks.native.kv_precision import FLOW_STEPS, H200_BYTES
from benchmarks.native.weights_errors import CHUNK, DEGREES, LOUD, LOUDNESS, errors
from minicpmo45.config import Config
from minicpmo45.memory_plan import STAGES, DType, Dtypes, memory_plan
from torch_kit.decoder_weights import DecoderConfig

PARTS = ("errors", "plan")
CARDS = {"H200": H200_BYTES, "80 GB": 85_000_000_000, "48 GB": 51_000_000_000, "24 GB": 25_000_000_000}
"""Bytes; those of the H200 as it tells them."""
WINDOWS = (4096, 8192)
Row = dict[str, Any]


def plan() -> Iterator[Row]:
    """Sessions of three services on cards of several sizes, by the types of weights and of keys and values."""
    kinds: tuple[tuple[DType | None, DType], ...] = tuple(product((None, "fp8"), ("bf16", "fp8")))
    for window, (matrices, kv) in product(WINDOWS, kinds):
        row: Row = {"window": window, "matrices": matrices or "bf16", "keys and values": kv}
        for name, nbytes in CARDS.items():
            try:
                made = memory_plan(nbytes, STAGES, window, FLOW_STEPS, Dtypes(kv=kv, matrices=matrices), Config(), prompt_frames=1)
            except ValueError:
                row[name] = "none"
                continue
            row[name] = made.sessions
            row.setdefault("thinker's weights, GB", sum(line.nbytes for line in made.stage("thinker").lines[:2] if not line.each) / 1e9)
        yield row


def sections(raw: Row) -> list[tuple[str, str]]:
    """Tables of the parts that there are."""
    card: Row = raw["card"]
    outliers = f"outliers: Student's t with {DEGREES} degrees, one channel of {LOUD} {LOUDNESS:g} times as loud behind norms"
    told = [
        f"{card['name']}, torch {card['torch']}, {card['date']}",
        f"width {raw['width']}, {raw['layers']} layers, {raw['words']} words, {raw['context']} tokens in forwards of {CHUNK} unless fused",
        f"random weights, normal; {outliers}. Trained ones have outliers of their own: what these say of them is the order, no more",
    ]
    made = [("Conditions", "\n".join(f"- {line}" for line in told))]
    for title, part in (
        ("Final states and next words against fp32 throughout", "errors"),
        (f"Sessions by the memory plan, three services, T={FLOW_STEPS}", "plan"),
    ):
        if rows := raw.get(part):
            header = list(dict.fromkeys(name for row in rows for name in row))
            made.append((title, report.table(header, [[_cell(row.get(name)) for name in header] for row in rows])))
    return made


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def _sized(width: int, layers: int) -> DecoderConfig:
    heads = width // THINKER.head_dim
    within = THINKER.intermediate_size * width // THINKER.hidden_size
    return replace(THINKER, hidden_size=width, layers=layers, heads=heads, kv_heads=max(heads // 4, 1), intermediate_size=within)


def main(arguments: list[str] | None = None) -> Row:
    """Runs what the arguments name; the raw results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a tiny decoder: a rehearsal")
    parser.add_argument("--layers", type=int, default=THINKER.layers)
    parser.add_argument("--width", type=int, default=THINKER.hidden_size, help="of states; the rest in proportion")
    parser.add_argument("--context", type=int, default=1024, help="tokens")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--name", default="weights_precision", help="of the results")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    config = TINY_THINKER if options.tiny else _sized(options.width, options.layers)
    words = 500 if options.tiny else Config().llm.vocab_size
    card = cards.measure(device)
    raw: Row = {"card": {"name": card.name, "torch": card.torch, "date": card.date}}
    raw |= {"context": options.context, "width": config.hidden_size, "layers": config.layers, "words": words}
    with torch.no_grad():
        for part in options.parts:
            rows = raw.setdefault(part, [])
            found = plan() if part == "plan" else (
                row for outliers in (False, True) for row in errors(config, words, options.context, device, outliers=outliers)
            )  # fmt: skip
            for row in found:
                rows.append(row)
                print(row, flush=True)
                report.write(options.name, "The thinker's matrices in e4m3 beside bf16", sections(raw), raw)
    return raw


if __name__ == "__main__":
    main()
