"""A unit of MiniCPM-o 4.5, full size, random weights, scripted to speak: every network beside its floor, then end to end.

`make bench-native-unit` on a machine with a GPU; `--tiny --device cpu` shows that it runs. Tables are written as they are made, so that
what was measured stays when a run is cut short; `--join FILE` takes parts that are not measured from an earlier run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import shutil
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from benchmarks import report
from benchmarks.native import card, chain, deployment, material, parity, stages, tables
from benchmarks.native.house import House
from benchmarks.native.material import Bench
from benchmarks.native.preload import PreloadedTalker, PreloadedThinker
from minicpmo45.config import read_config
from vocoder_svc.minicpmo45.engine import MiniCpmVocoderEngine

PARTS = ("parity", "stages", "vocoder", "chain", "deployment")
FLOWS = ((5, "float32"), (10, "float32"), (5, "bfloat16"), (10, "bfloat16"))


class Run:
    """One run and what it found so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.raw: tables.Raw = msgspec.json.decode(options.join.read_bytes()) if options.join else {}
        self.raw["failures"] = {}
        self.bench = Bench(options.checkpoint, options.device, options.context, options.held, max(options.sessions))
        self.tiny = Bench(options.scratch / "tiny", options.device, options.context, options.held, 3)
        self._began = time.monotonic()

    def prepare(self) -> None:
        """Ceilings of the card, and the checkpoints."""
        self.raw["card"] = msgspec.to_builtins(card.measure(self.bench.on))
        made = material.checkpoint(self.bench.checkpoint, full=not self.options.tiny)
        material.checkpoint(self.tiny.checkpoint, full=False)
        self.raw["conditions"] = [
            f"{'tiny' if self.options.tiny else 'released'} sizes, random weights ({made:.0f} s to write); thinker and talker bf16, with "
            "keys and values bf16, flow as named with bf16 caches, HiFT fp32 with TF32 convolutions unless named otherwise",
            f"preloaded: {self.bench.context} tokens of context and an audio encoder's cache of random age in every session, "
            f"{self.bench.held} tokens in every talker's turn; voice of {material.VOICE_S:g} s (250 mel frames); flow in steady state",
            f"every unit speaks: {' '.join(map(str, material.SPEAK))}; sampling with the released defaults, then replaced by the script",
            "plain torch attention over gathered pages; CUDA graphs of the thinker's encoders, decoding steps and decisions, the talker's "
            "codes, the whole vocoder; prefill and the talker's condition run kernel by kernel",
        ]

    def part(self, name: str, measure: Callable[[], None]) -> None:
        """Runs it, keeps what it found, and goes on where it failed."""
        if name not in self.options.parts:
            return
        began = time.monotonic()
        try:
            with torch.no_grad():
                measure()
        except Exception as error:
            traceback.print_exc()
            self.raw["failures"][name] = f"{type(error).__name__}: {error}"
        gc.collect()
        if self.bench.on.type == "cuda":
            torch.cuda.empty_cache()
        print(f"[{time.monotonic() - self._began:.0f} s] {name} took {time.monotonic() - began:.0f} s", flush=True)
        self.write()

    def write(self) -> None:
        path = report.write("native_unit", "A unit of the native model", tables.sections(self.raw), self.raw)
        tables.plot(self.raw, path.with_suffix(".png"))

    def parity(self) -> None:
        self.raw["parity"] = parity.compare(self.tiny)

    def stages(self) -> None:
        """Thinker and talker."""
        self.raw["stages"] = [each for each in self.raw.get("stages", []) if each["stage"].startswith(("flow", "HiFT", "vocoder"))]
        config = read_config(self.bench.checkpoint)
        thinker = self._thinker(0)
        for sessions in self.options.sessions:
            self._keep(stages.thinker(self.bench, thinker, config, sessions))
        del thinker
        talker = self._talker()
        for sessions in self.options.sessions:
            self._keep(stages.talker(self.bench, talker, config, sessions))

    def vocoder(self) -> None:
        self.raw["stages"] = [each for each in self.raw.get("stages", []) if not each["stage"].startswith(("flow", "HiFT", "vocoder"))]
        config = read_config(self.bench.checkpoint)
        for steps, dtype in FLOWS:
            self._keep(stages.vocoder(self.bench, config, self.options.sessions, steps, dtype))

    def chain(self) -> None:
        self.raw["chain"] = []
        with self._house() as house:
            most = max(self.options.sessions)
            kinds = [(self.bench.on.type == "cuda", sessions, seen) for sessions in self.options.sessions for seen in (False, True)]
            for graphs, sessions, seen in [*kinds, (False, most, False)]:
                for each in (house.thinker._model.graphs, house.talker._speaker.graphs, house.vocoder._vocoder._graphs):
                    each.on = graphs
                self.raw["chain"].append(chain.measure(self.bench, house, sessions, seen=seen))
                print(self.raw["chain"][-1], flush=True)

    def deployment(self) -> None:
        self.raw["deployment"] = []
        kinds = [(kind == "mps", False) for kind in self.options.sharing] + ([(False, True)] if self.options.plain_deployment else [])
        for mps, plain in kinds:
            asyncio.run(self._deployed(mps=mps, plain=plain))

    async def _deployed(self, *, mps: bool, plain: bool) -> None:
        env = {f"PARLEY_{stage}_PLAIN": str(plain) for stage in ("THINKER", "TALKER", "VOCODER")}
        if self.options.tiny:
            env["PARLEY_THINKER_WINDOW_TOKENS"] = "4096"
        async with deployment.deployed(self.bench, mps=mps, **env) as there:
            address = there.addresses[0]
            await deployment.converse(address, max(self.options.sessions), 6, material.picture())
            for sessions in self.options.sessions:
                for seen in (False, True) if sessions == max(self.options.sessions) else (False,):
                    talks = await deployment.converse(address, sessions, self.options.units, material.picture() if seen else None)
                    row = summary(talks, self.options.units)
                    sharing = "MPS" if mps else "time slices"
                    self.raw["deployment"].append(
                        {
                            "sessions": sessions,
                            "picture": seen,
                            "sharing": sharing,
                            "graphs": not plain and self.bench.on.type == "cuda",
                            **row,
                        }
                    )
                    print({k: v for k, v in self.raw["deployment"][-1].items() if not isinstance(v, list)}, flush=True)
                    self.write()

    def _thinker(self, context: int) -> PreloadedThinker:
        began = time.monotonic()
        made = PreloadedThinker(self.bench.thinker(**({"window_tokens": 4096} if self.options.tiny else {})), context)
        made.load()
        print(f"thinker loaded in {time.monotonic() - began:.1f} s", flush=True)
        return made

    def _talker(self) -> PreloadedTalker:
        made = PreloadedTalker(self.bench.talker(), self.bench.held)
        made.load()
        return made

    @contextlib.contextmanager
    def _house(self) -> Iterator[House]:
        vocoder = MiniCpmVocoderEngine(self.bench.vocoder())
        vocoder.load()
        try:
            yield House(self._thinker(self.bench.context), self._talker(), vocoder)
        finally:
            vocoder._voices.close()

    def _keep(self, found: Iterator[stages.Stage]) -> None:
        for each in found:
            self.raw["stages"].append(msgspec.to_builtins(each))
            print(f"{each.sessions:3} {each.stage:30} {each.ms:9.2f} ms, {each.ran}", flush=True)


def summary(talks: list[deployment.Talk], units: int) -> dict[str, Any]:
    """Of all clients, without the first speaking unit; `growth`: ms by which the last third's sound lags more than the first's."""
    last = units - deployment.SKIPPED + 1
    sound = [talk.sound[1:last] for talk in talks]
    return {
        "text": [ms for talk in talks for ms in talk.text[1:last]],
        "sound": [ms for each in sound for ms in each],
        "waits": [ms for talk in talks for ms in talk.late_ms[2:last]],
        "expected": len(talks) * (last - 1),
        "growth": max(
            (float(np.median(each[-len(each) // 3 :]) - np.median(each[: len(each) // 3])) for each in sound if len(each) > 2), default=0.0
        ),
        "errors": [message for talk in talks for message in talk.errors],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--checkpoint", type=Path, help="made if it does not exist (19.5 GB); default: in the scratch folder")
    parser.add_argument("--tiny", action="store_true", help="the tiny model: a rehearsal")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--held", type=int, default=500)
    parser.add_argument("--units", type=int, default=16, help="of each client of a deployment")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--sharing", nargs="+", choices=("mps", "slices"), default=["slices"])
    parser.add_argument("--plain-deployment", action="store_true", help="deploys without graphs as well")
    parser.add_argument("--scratch", type=Path, default=Path("/tmp/parley-native"))
    parser.add_argument("--join", type=Path, help="native_unit.json of an earlier run")
    options = parser.parse_args()
    options.checkpoint = options.checkpoint or options.scratch / ("bench" if options.tiny else "full")
    # not an option, so that the command in the table is the same wherever the files go
    report.RESULTS = Path(os.environ.get("PARLEY_BENCH_RESULTS", report.RESULTS))
    run = Run(options)
    run.prepare()
    for name in PARTS:
        run.part(name, getattr(run, name))
    shutil.rmtree(run.tiny.checkpoint, ignore_errors=True)
    print((report.RESULTS / "native_unit.md").read_text())


if __name__ == "__main__":
    main()
