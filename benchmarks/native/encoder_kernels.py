"""The thinker's encoders: what bf16 loses, whole units and pictures from graphs, each fused kernel beside its floor and torch.

`python -m benchmarks.native.encoder_kernels` on a machine with a GPU; with `--tiny --device cpu` and TRITON_INTERPRET=1 a rehearsal.
Results are written part by part.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from benchmarks import report
from benchmarks.native import card as cards
from benchmarks.native.card import Card
from benchmarks.native.decoder_kernels import EXACT, WORSE, cell, checked, dtype_on, raced
from benchmarks.native.encoder_cases import hearing, seeing
from benchmarks.native.floors import Floors
from benchmarks.native.material import sound
from benchmarks.native.timing import graphed, kernels, timed
from minicpmo45.config import Config, tiny
from minicpmo45.layout import safetensors_layout, select
from thinker_svc.minicpmo45.frames import Picture, Slice
from thinker_svc.minicpmo45.mel import UNIT_SAMPLES
from thinker_svc.minicpmo45.perception import Perception
from thinker_svc.minicpmo45.vision_encoder import PatchBatch

PREFIXES = ("apm.", "audio_projection_layer.", "vpm.", "resampler.")
Kernels = Literal["plain", "fused"]
BOTH: tuple[Kernels, Kernels] = ("plain", "fused")
PARTS = ("lost", "whole", "kernels")
Row = dict[str, Any]


def random_weights(config: Config, device: torch.device) -> dict[str, Tensor]:
    """fp32, of a spread that keeps states of order 1."""
    made = {}
    for name, spec in select(safetensors_layout(config), PREFIXES).items():
        values = torch.randn(spec.shape, device=device)
        norm = len(spec.shape) == 1 and name.endswith("weight")
        made[name] = (
            1 + 0.1 * values if norm else values / math.sqrt(math.prod(spec.shape[1:]) or 1) if len(spec.shape) > 1 else 0.1 * values
        )
    return made


def pictures(config: Config, count: int, side: int) -> list[Picture]:
    """Noise of side x side patches."""
    draw = np.random.default_rng(3)
    width = 3 * config.vision.patch_size**2
    return [Picture((Slice(side, side, draw.integers(0, 256, (side * side, width), np.uint8)),), None) for _ in range(count)]


class Ears:
    """A `Perception` whose sessions are of all ages. Without graphs; the same caches for all of one device and dtype."""

    def __init__(self, weights: dict[str, Tensor], config: Config, sessions: int, kind: Kernels, *, plain: bool = True) -> None:
        self.perception = Perception(weights, config, sessions, plain=plain, kernels=kind)
        self.sessions, self._limit = sessions, config.audio.max_positions
        self._samples = [sound(UNIT_SAMPLES, slot) for slot in range(sessions)]
        generator = torch.Generator(self.perception.cache.device).manual_seed(7)
        for layer in self.perception.cache:
            layer.copy_(torch.randn(layer.shape, generator=generator, device=layer.device))
        for slot in range(sessions):
            self.perception.open(slot)
        self.age()

    def age(self) -> None:
        """As they began: 700 frames in the cache on average."""
        slots = np.arange(self.sessions)
        self.perception._units[slots] = 5
        self.perception._cached[slots] = 50 * ((1 + slots * 7) % (self._limit // 50 - 1)) if self.sessions > 1 else 700

    def hear(self) -> Tensor:
        self.age()
        return self.perception.hear(range(self.sessions), self._samples, [False] * self.sessions)

    def heard(self, span: int) -> Callable[[], Tensor]:
        """What a graph of it holds."""
        self.age()
        slots = np.arange(self.sessions)
        numbers = np.stack((slots, self.perception._units[slots], self.perception._cached[slots]))
        upload = self.perception._upload(self.sessions, numbers, range(self.sessions), self._samples)
        return lambda: self.perception._heard(upload, self.sessions, span)


def lost(config: Config, device: torch.device, side: int, sessions: int = 5) -> list[Row]:
    """Error of embeddings against the plain path in fp32, in parts of their spread: sessions of all ages, two pictures."""
    truth = random_weights(config, device)
    low = {name: each.to(dtype_on(device)) for name, each in truth.items()}
    seen, rows = pictures(config, 2, side), []
    ways = [Ears(weights, config, sessions, kind) for weights, kind in ((truth, "plain"), (low, "plain"), (low, "fused"))]  # type: ignore[arg-type]
    heard = [each.hear().double() for each in ways]
    looked = [torch.cat(each.perception.see(seen)).double() for each in ways]
    for what, (exact, plain, fused) in (("sound", heard), ("pictures", looked)):
        error, torchs = (float((each - exact).square().mean().sqrt() / exact.std()) for each in (fused, plain))
        rows.append({"what": what, "error": error, "torch error": torchs, "holds": error <= max(WORSE * torchs, EXACT)})
        print(rows[-1], flush=True)
    return rows


def whole(config: Config, sessions: list[int], images: list[int], side: int, device: torch.device, card: Card) -> list[Row]:
    """Units and pictures in graphs, plain and fused; and as they are served, from samples on the host, with the host's part of it."""
    weights = {name: each.to(dtype_on(device)) for name, each in random_weights(config, device).items()}
    rows: list[Row] = []

    def add(what: str, count: int, floor: float, ran: dict[str, tuple[Callable[[], object], Callable[[], object]]]) -> None:
        row: Row = {"what": what, "count": count, "floor ms": floor}
        for kind, (graph, served) in ran.items():
            row[f"{kind} ms"] = graphed(device, graph)
            row[f"{kind} kernels"] = kernels(device, graph)[0]
            row[f"{kind} served ms"] = statistics.median(timed(device, served, 1 if device.type == "cpu" else 6, 1))
        rows.append(row)
        print(row, flush=True)

    for count in sessions:
        ears = {kind: Ears(weights, config, count, kind, plain=False) for kind in BOTH}
        age = float(np.mean(ears["plain"].perception._cached[:count]))
        ran = {kind: (each.heard(1000 if count == 1 else config.audio.max_positions), each.hear) for kind, each in ears.items()}
        add("units", count, Floors(config, count, 0).hearing(age).ms(card), ran)
    eyes = {kind: Ears(weights, config, 1, kind, plain=False).perception for kind in BOTH}
    for count in images:
        seen = pictures(config, count, side)
        batch = PatchBatch.of([each.slices[0] for each in seen], device)
        both = {
            kind: (lambda each=each, batch=batch: each._sight._read(batch), lambda each=each, seen=seen: each.see(seen))  # type: ignore[misc]
            for kind, each in eyes.items()
        }
        add("pictures", count, Floors(config, count, 0).seeing(side * side).ms(card), both)  # type: ignore[arg-type]
    return rows


def alone(config: Config, sessions: list[int], images: list[int], patches: int, device: torch.device, card: Card) -> list[Row]:
    """One row a kernel and shape; each is checked before it is timed."""
    dtype, rows = dtype_on(device), []
    scenes = [("sessions", count, hearing(config.audio, count, dtype, device)) for count in sessions]
    scenes += [("images", count, seeing(config.vision, count, patches, dtype, device)) for count in images]
    for what, count, cases in scenes:
        for case in cases:
            lines = len(case.fused(0, None))
            rows.append({what: count, "kernel": case.kernel, **checked(case, lines, dtype), **raced(case, dtype, device, card, plain=True)})
            print(rows[-1], flush=True)
    return rows


def sections(raw: Row) -> list[tuple[str, str]]:
    """Tables of the parts that there are."""
    card: Row = raw["card"]
    made = [("Card", f"{card['name']}, torch {card['torch']}, {card['date']}")]
    for title, part in (
        ("Errors against plain fp32, in parts of the spread", "lost"),
        ("Units and pictures, ms: in a graph, and as served with the host's work", "whole"),
        ("Kernels, microseconds a call in a graph", "kernels"),
    ):
        if rows := raw.get(part):
            header = list(dict.fromkeys(name for row in rows for name in row))
            made.append((title, report.table(header, [[cell(row.get(name)) for name in header] for row in rows])))
    return made


def main(arguments: list[str] | None = None) -> Row:
    """Runs what the arguments name; the raw results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny encoders and pictures: a rehearsal")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 8, 32, 64, 128])
    parser.add_argument("--images", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--name", default="encoder_kernels", help="of the results")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    if device.type == "cpu":
        from tests.support.interpreter import mend_interpreter

        mend_interpreter()
    config, side = (tiny(), 3) if options.tiny else (Config(), 32)
    card = cards.measure(device)
    raw: Row = {"card": {"name": card.name, "torch": card.torch, "date": card.date}}
    with torch.no_grad():
        for part in options.parts:
            if part == "lost":
                raw[part] = lost(config, device, side)
            elif part == "whole":
                raw[part] = whole(config, options.sessions, options.images, side, device, card)
            else:
                raw[part] = alone(config, options.sessions, options.images, side * side, device, card)
            report.write(options.name, "The thinker's encoders", sections(raw), raw)
    return raw


if __name__ == "__main__":
    main()
