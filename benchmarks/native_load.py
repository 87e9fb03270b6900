"""MiniCPM-o 4.5 under load, full size, random weights: many conversations in real time through gateways and three services on one card.

Each level opens its sessions anew, with their windows filled. The clients are processes of their own and speak open loop. Tables are
written as they are made, so that what was measured stays when a run is cut short.

    python -m benchmarks.native_load --sessions 1 32 64 --phases spread step --share 0.5 --steps 5 --mps
    python -m benchmarks.native_load --tiny --device cpu --sessions 2 --seconds 8     # a rehearsal
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import torch

from benchmarks import report
from benchmarks.native import card, deployment, load, material
from benchmarks.native.load import Level
from benchmarks.native.load_plot import draw
from benchmarks.native.material import Bench
from benchmarks.native.spurts import MEAN_S, TEXTS, spurts
from minicpmo45.config import CODE_RATE

SEED = 22
SCRIPT_UNITS = 400
"""Whole decks of texts, with speech in every unit and in half of them."""
STAGGER = 137
"""Units of the script that lie between two sessions: the windows of 32 to 128 sessions cover it about evenly."""
LEAD_MS = 60_000
"""So that no sound is held back for being early: the lag is the server's."""


class Run:
    """One deployment, several levels of load."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.bench = Bench(options.checkpoint, options.device, options.context, options.held, max(options.sessions))
        self.raw: dict[str, Any] = {"levels": []}
        if options.join and options.join.exists():
            self.raw["levels"] = msgspec.json.decode(options.join.read_bytes())["levels"]

    def prepare(self) -> None:
        """Checkpoint, script, and what the card can do."""
        options = self.options
        material.checkpoint(self.bench.checkpoint, full=not options.tiny)
        units = spurts(SCRIPT_UNITS, options.share, SEED)
        # of this run alone: another may be on another card
        self._script = self.bench.checkpoint / f"load_script_{os.getpid()}.json"
        self._script.write_text(json.dumps({"units": units, "stagger": STAGGER}))
        self.raw["card"] = msgspec.to_builtins(card.measure(self.bench.on))
        if self.bench.on.type == "cuda":
            torch.cuda.empty_cache()  # the services need it
        self.raw["conditions"] = [
            f"{'tiny' if options.tiny else 'released'} sizes, random weights, scripted decisions: spurts of speech of {MEAN_S:g} s on "
            f"average, text tokens a unit {TEXTS} %",
            f"preloaded: {options.context} tokens of context in a window of {options.window}, an audio encoder's cache of random age, "
            f"{options.held} tokens in every talker's turn; voice of {material.VOICE_S:g} s (250 mel frames)",
            "random weights never draw the end of a turn: its last unit ends after 25 codes",
            f"clients send packets of 100 ms; sound may be up to {LEAD_MS} ms ahead, so that none is held back; lag: from a unit's last "
            "packet to all that the unit made; a hole is silence at a player that began 80 ms after a turn's first sound",
        ]

    async def measure(self) -> None:
        """Every level after a short one that meets what is new."""
        options = self.options
        env = {
            "PARLEY_THINKER_SCRIPT": str(self._script),
            "PARLEY_VOCODER_FLOW_STEPS": str(options.steps),
            "PARLEY_TALKER_TAIL_CODES": str(CODE_RATE),
            "PARLEY_THINKER_WINDOW_TOKENS": str(options.window),
            **dict(pair.split("=", 1) for pair in options.env),
        }
        began = time.monotonic()
        async with deployment.deployed(self.bench, mps=options.mps, gateways=options.gateways, lead_ms=LEAD_MS, **env) as there:
            self.raw["start_s"] = time.monotonic() - began
            print(f"ready after {self.raw['start_s']:.1f} s", flush=True)
            picture = material.picture()
            await load.run(Level(max(options.sessions), "spread", 7, options.video), there.addresses, picture, there.pids)
            for level in self._levels():
                found = await load.run(level, there.addresses, picture, there.pids, there.stages)
                told = {"share": options.share, "steps": options.steps, "context": options.context, "env": options.env}
                self._keep({**found, **told, "start_s": self.raw["start_s"]})

    def _levels(self) -> Iterator[Level]:
        options = self.options
        for sessions in options.sessions:
            for phases in options.phases:
                yield Level(sessions, phases, options.seconds, options.video, options.cancels, options.clients)
        for sessions, phases, what in (each.split(":") for each in options.also):
            video = 1.0 if what == "video" else options.video
            yield Level(int(sessions), phases, options.seconds, video, what == "cancels", options.clients)

    def _keep(self, found: dict[str, Any]) -> None:
        self.raw["levels"].append(found)
        print(dict(zip(load.HEADER, load.row(found), strict=True)), flush=True)
        if found["errors"]:
            print(found["errors"][:3], flush=True)
        self.write()

    def close(self) -> None:
        """Draws what was measured, where there is matplotlib."""
        self._script.unlink()
        if find_spec("matplotlib") is not None:
            draw(self.raw["levels"], report.RESULTS / "native_load.png")

    def write(self) -> None:
        """A table for each kind of load."""
        sections = [("Card and conditions", "\n".join(f"- {line}" for line in (*_card(self.raw["card"]), *self.raw["conditions"])))]
        kinds: dict[str, list[dict[str, Any]]] = {}
        for level in self.raw["levels"]:
            options = f", {' '.join(level['env'])}" if level["env"] else ""
            title = f"Speak share {level['share']:g}, T={level['steps']}, {level['context']} tokens preloaded{options}: ms"
            kinds.setdefault(title, []).append(level)
        sections += [(title, report.table(load.HEADER, [load.row(level) for level in levels])) for title, levels in kinds.items()]
        report.write("native_load", "The native model under load", sections, self.raw)


def _card(found: dict[str, Any]) -> list[str]:
    return [", ".join(f"{name} {value}" for name, value in found.items() if value)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--checkpoint", type=Path, help="made if it does not exist (19.5 GB); default: in the scratch folder")
    parser.add_argument("--tiny", action="store_true", help="the tiny model: a rehearsal")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--phases", nargs="+", choices=("step", "spread"), default=["spread"])
    parser.add_argument("--share", type=float, default=0.5, help="of units that speak")
    parser.add_argument("--steps", type=int, default=5, help="Euler steps of the flow")
    parser.add_argument("--video", type=float, default=0.0, help="share of clients that send a picture a second")
    parser.add_argument(
        "--also", nargs="*", default=[], metavar="SESSIONS:PHASES:WHAT", help="more levels; WHAT is video (every client) or cancels"
    )
    parser.add_argument("--seconds", type=int, default=30, help="units of each client and level")
    parser.add_argument("--window", type=int, default=4096, help="tokens that a session's window holds at most, prefix included")
    parser.add_argument("--context", type=int, default=3800, help="tokens preloaded: with the prefix nearly a window")
    parser.add_argument("--held", type=int, default=250, help="tokens of a talker's turn before its first unit")
    parser.add_argument("--gateways", type=int, default=1)
    parser.add_argument("--clients", type=int, default=8, help="processes that speak")
    parser.add_argument("--cancels", action="store_true", help="every client cancels each second response")
    parser.add_argument("--mps", action="store_true", help="the services share the card through NVIDIA's control daemon")
    parser.add_argument("--env", nargs="*", default=[], metavar="NAME=VALUE", help="settings of the services (thinker:NAME=VALUE: of one)")
    parser.add_argument("--scratch", type=Path, default=Path("/tmp/parley-native"))
    parser.add_argument("--join", type=Path, help="native_load.json of earlier runs, whose levels stay in the table")
    options = parser.parse_args()
    options.checkpoint = options.checkpoint or options.scratch / ("bench" if options.tiny else "full")
    # not an option, so that the command in the table is the same wherever the files go
    report.RESULTS = Path(os.environ.get("PARLEY_BENCH_RESULTS", report.RESULTS))
    run = Run(options)
    run.prepare()
    asyncio.run(run.measure())
    run.close()
    print((report.RESULTS / "native_load.md").read_text())


if __name__ == "__main__":
    main()
