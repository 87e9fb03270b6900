"""One step of each engine of MiniCPM-o 4.5 as it is served, full size, random weights, at 1 to 128 sessions, beside its floor.

    python -m benchmarks.native_step --sessions 1 8 32 64 128 --kernels fused plain
    python -m benchmarks.native_step --parts thinker --weights auto fp8     # matrices of its blocks as they are, and in e4m3
    python -m benchmarks.native_step --tiny --device cpu --sessions 1 2     # a rehearsal

Tables are written as they are made. Each engine has the card to itself.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch

from benchmarks import report
from benchmarks.native import card, material, steps
from benchmarks.native.card import Card
from benchmarks.native.floors import Floor
from benchmarks.native.material import Bench
from benchmarks.native.preload import PreloadedTalker, PreloadedThinker
from benchmarks.native.stages import voice_prompt
from minicpmo45.config import read_config
from vocoder_svc.minicpmo45.engine import MiniCpmVocoderEngine

PARTS = ("thinker", "talker", "vocoder")
HEADER = ["sessions", "kernels", "step", "ms", "worst", "kernels' own ms", "kernels", "floor ms", "bound by", "times floor"]


class Run:
    """One run and what it found so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.bench = Bench(options.checkpoint, options.device, options.context, options.held, max(options.sessions))
        self.raw: dict[str, Any] = {
            "steps": msgspec.json.decode(options.join.read_bytes())["steps"] if options.join else [],
            "failures": {},
        }
        self.card: Card = card.measure(self.bench.on)
        self.raw["card"] = msgspec.to_builtins(self.card)
        material.checkpoint(self.bench.checkpoint, full=not options.tiny)
        self.config = read_config(self.bench.checkpoint)

    def measure(self) -> None:
        """Every part in every manner; one that fails is told, and the others go on."""
        for kernels in self.options.kernels:
            for part in self.options.parts:
                began = time.monotonic()
                os.environ["PARLEY_STAGES_ON_CARD"] = part
                try:
                    with torch.no_grad():
                        getattr(self, part)(kernels)
                except Exception as error:
                    traceback.print_exc()
                    self.raw["failures"][f"{part}, {kernels}"] = f"{type(error).__name__}: {error}"
                gc.collect()
                if self.bench.on.type == "cuda":
                    torch.cuda.empty_cache()
                print(f"{part}, {kernels}: {time.monotonic() - began:.0f} s", flush=True)
                self.write()

    def thinker(self, kernels: str) -> None:
        """With the window full up to `context`, with matrices of every type asked for."""
        for weights in self.options.weights:
            self._thinker(kernels, weights)

    def _thinker(self, kernels: str, weights: str) -> None:
        window = 512 if self.options.tiny else max(2048, -(-self.options.context // 1024) * 1024 + 512)
        for draft in {False, kernels == "fused"}:
            chosen = {"kernels": kernels, "draft": draft, "window_tokens": window, "weights_dtype": weights}
            made, label = (
                PreloadedThinker(self.bench.thinker(**chosen), 0),
                kernels if weights == "auto" else f"{kernels}, {weights} weights",
            )
            began = time.monotonic()
            made.load()
            print(
                f"thinker, {label}, draft {draft}: loaded in {time.monotonic() - began:.1f} s, {len(made._model.graphs)} graphs",
                flush=True,
            )
            for sessions in self.options.sessions:
                self._keep(label, steps.thinker(self.bench, made, self.config, sessions, draft=draft, seen=sessions <= 48 and not draft))
            del made
            gc.collect()

    def talker(self, kernels: str) -> None:
        """Turns that hold `held` tokens."""
        made = PreloadedTalker(self.bench.talker(kernels=kernels), self.bench.held)
        made.load()
        for sessions in self.options.sessions:
            self._keep(kernels, steps.talker(self.bench, made, self.config, sessions))

    def vocoder(self, kernels: str) -> None:
        """In every precision asked for."""
        for precision in self.options.flows:
            dtype, tf32 = {"bf16": "bfloat16", "fp16": "float16"}.get(precision, "float32"), precision == "tf32"
            if tf32 and kernels == "plain":
                continue
            chosen = {"flow_dtype": dtype, "flow_tf32": tf32, "flow_steps": self.options.steps}
            made = MiniCpmVocoderEngine(self.bench.vocoder(kernels=kernels, **chosen))
            made.load()
            prompt = voice_prompt(made)
            for sessions in self.options.sessions:
                self._keep(kernels, steps.vocoder(self.bench, made, prompt, self.config, sessions))
            made._voices.close()
            del made
            gc.collect()

    def _keep(self, kernels: str, found: Iterator[steps.Step]) -> None:
        for each in found:
            self.raw["steps"].append({"kernels": kernels, **msgspec.to_builtins(each)})
            print(self._row(self.raw["steps"][-1]), flush=True)
        self.write()

    def _row(self, found: dict[str, Any]) -> list[object]:
        floor = msgspec.convert(found["floor"], Floor)
        least = floor.ms(self.card)
        by = "bytes" if floor.nbytes / self.card.copy_bytes_s * 1000 >= least else floor.kind
        count, own = found["ran"]
        times = "" if own is None else round(own, 3)
        return [
            found["sessions"],
            found["kernels"],
            found["step"],
            *(round(found[name], 3) for name in ("ms", "worst_ms")),
            times,
            count or "",
            round(least, 3),
            by,
            f"{found['ms'] / least:.2f}",
        ]

    def write(self) -> None:
        """The table so far."""
        conditions = [
            ", ".join(f"{name} {value}" for name, value in self.raw["card"].items() if value),
            f"{'tiny' if self.options.tiny else 'released'} sizes, random weights; {self.options.context} tokens of context, "
            f"a talker's turn of {self.options.held}, a voice of {material.VOICE_S:g} s; all sessions in step",
            "ms: wall time of the engine's own step, from an idle card to the answer on the host",
        ]
        rows = [self._row(each) for each in sorted(self.raw["steps"], key=lambda each: (each["step"], each["kernels"], each["sessions"]))]
        sections = [("Card and conditions", "\n".join(f"- {line}" for line in conditions)), ("Steps", report.table(HEADER, rows))]
        if self.raw["failures"]:
            sections.append(("Failed", "\n".join(f"- {part}: {why}" for part, why in self.raw["failures"].items())))
        report.write(self.options.name, "A step of each engine", sections, self.raw)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--checkpoint", type=Path, help="made if it does not exist (19.5 GB); default: in the scratch folder")
    parser.add_argument("--tiny", action="store_true", help="the tiny model: a rehearsal")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 8, 32, 64, 128])
    parser.add_argument("--kernels", nargs="+", choices=("plain", "fused"), default=["fused"])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--weights", nargs="+", choices=("auto", "fp8"), default=["auto"], help="of the thinker's blocks")
    parser.add_argument(
        "--flows", nargs="+", choices=("fp32", "tf32", "bf16", "fp16"), default=["tf32", "bf16", "fp16"], help="precisions of the flow"
    )
    parser.add_argument("--steps", type=int, default=5, help="Euler steps of the flow")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--held", type=int, default=500)
    parser.add_argument("--name", default="native_step", help="of the results")
    parser.add_argument("--scratch", type=Path, default=Path("/tmp/parley-native"))
    parser.add_argument("--join", type=Path, help="native_step.json of an earlier run, whose steps stay in the table")
    options = parser.parse_args()
    options.checkpoint = options.checkpoint or options.scratch / ("bench" if options.tiny else "full")
    # not an option, so that the command in the table is the same wherever the files go
    report.RESULTS = Path(os.environ.get("PARLEY_BENCH_RESULTS", report.RESULTS))
    Run(options).measure()
    print((report.RESULTS / f"{options.name}.md").read_text())


if __name__ == "__main__":
    main()
