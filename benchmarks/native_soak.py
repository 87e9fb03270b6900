"""MiniCPM-o 4.5 under lasting load: memory and lag, whose sound and words come to whom, failures of one session, kills of a service.

Every session says what a plan of its own says (`benchmarks/native/soak_plan.py`): its words are compared as they are, its sound with what
a vocoder makes of the same codes that speaks for nobody else.

    python -m benchmarks.native_soak --sessions 64 --minutes 6 --faults --kill thinker talker vocoder --mps
    python -m benchmarks.native_soak --tiny --device cpu --sessions 4 --minutes 1.5 --faults --kill vocoder      # a rehearsal
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import torch

from benchmarks import report
from benchmarks.native import card, deployment, material, soak_judge, soak_load, soak_plan
from benchmarks.native.deployment import STAGES
from benchmarks.native.load import HEADER as LAG_HEADER
from benchmarks.native.load import Level, row, summary
from benchmarks.native.material import Bench
from benchmarks.native.soak_load import Load, Phase
from benchmarks.native.soak_reference import Alone, heard
from minicpmo45.config import read_config
from thinker_svc.minicpmo45.vocabulary import Vocabulary

LEAD_MS = 3000
SPARE_MB, SPARE_MS = 32.0, 15.0
"""What may be added over time, however small it was."""
THIRDS = ["first third", "second", "last", "grew by", ""]


class Run:
    """One deployment: a long phase, and a short one for each kill."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.bench = Bench(options.checkpoint, options.device, options.context, options.held, options.sessions)
        self.folder = Path(tempfile.mkdtemp(prefix="parley-soak-"))
        self.sections: list[tuple[str, str]] = []
        self.raw: dict[str, Any] = {"phases": []}
        self.failed: list[str] = []
        self.phases = [*([""] if options.minutes else []), *options.kill]
        """Which stage is killed in each."""

    @property
    def name(self) -> str:
        """Of the tables: kills alone have their own."""
        return "native_soak" if self.options.minutes else "native_soak_kills"

    def prepare(self) -> None:
        """Checkpoint and plan."""
        options = self.options
        material.checkpoint(self.bench.checkpoint, full=not options.tiny)
        self.script = soak_plan.script(options.share)
        (self.folder / "script.json").write_text(json.dumps({"units": self.script}))
        (self.folder / "orders").mkdir()
        self.raw["card"] = msgspec.to_builtins(card.measure(self.bench.on))
        if self.bench.on.type == "cuda":
            torch.cuda.empty_cache()  # the services need it
        conditions = [
            ", ".join(f"{name} {value}" for name, value in self.raw["card"].items() if value),
            f"{'tiny' if options.tiny else 'released'} sizes, random weights; {options.context} tokens of context and {options.held} "
            f"tokens of a talker's turn preloaded; T={options.steps}; speak share {options.share:g}{', MPS' if options.mps else ''}; "
            f"{' '.join(options.env) or 'settings as they are'}",
            "decisions, words and codes are planned by session and unit; everything else runs as ever",
        ]
        self.sections.append(("Card and conditions", "\n".join(f"- {line}" for line in conditions)))

    async def measure(self) -> list[Phase]:
        """All phases, with the raw numbers kept as they come."""
        options = self.options
        async with deployment.deployed(
            self.bench,
            mps=options.mps,
            gateways=options.gateways,
            lead_ms=LEAD_MS,
            service="benchmarks.native.soak_service",
            **self._env(),
        ) as there:
            phases = []
            for number, kill in enumerate(self.phases):
                load = Load(there, self.folder / f"sound{number}", self.folder / "orders", on_card=self.bench.on.type == "cuda")
                seconds = options.kill_seconds if kill else round(options.minutes * 60)
                every = options.faults_every if options.faults and not kill else 0.0
                phase = await load.run(
                    options.sessions, seconds, processes=options.clients, faults_s=every, kinds=tuple(options.fault_kinds), kill=kill
                )
                phases.append(phase)
                self.raw["phases"].append(soak_load.raw(phase))
                print(f"{kill or 'soak'}: {seconds} s are over", flush=True)
                if there.dead:
                    raise RuntimeError(f"ended: {there.dead}")
            return phases

    def _env(self) -> dict[str, str]:
        options = self.options
        env = {
            "PARLEY_THINKER_SCRIPT": str(self.folder / "script.json"),
            "PARLEY_VOCODER_FLOW_STEPS": str(options.steps),
            "PARLEY_BENCH_ORDERS": str(self.folder / "orders"),
            **({"PARLEY_STAGE_WAIT_MS": str(round(options.wait_s * 1000))} if options.kill else {}),
            "PARLEY_THINKER_WINDOW_TOKENS": "4096",
        }
        return env | dict(pair.split("=", 1) for pair in options.env)

    def judge(self, phases: list[Phase]) -> None:
        """All tables, written as they are made."""
        # the reference speaks with the settings of the service
        os.environ |= {name: value for name, value in self._env().items() if name.startswith("PARLEY_VOCODER_")}
        alone = Alone(self.bench.vocoder(slots=1, batch=1, flow_steps=self.options.steps), self.script)
        vocabulary = Vocabulary.read(self.bench.checkpoint, read_config(self.bench.checkpoint).llm.vocab_size)
        for kill, phase in zip(self.phases, phases, strict=True):
            if kill:
                self._killed(phase, kill, alone)
            else:
                self._lasting(phase)
                self._failures(phase, alone, vocabulary)
            self.write()
            self._mixing(phase, alone, vocabulary, f"after a kill of the {kill}" if kill else "all the time")
            self.write()

    def _lasting(self, phase: Phase) -> None:
        level = Level(phase.sessions, "spread", phase.seconds)
        found = {**msgspec.to_builtins(level), **summary(list(phase.talks), level), "cpu": {}}
        settled = min(soak_judge.SETTLING_S, phase.seconds / 4)
        memory = soak_judge.memory_rows(phase.memory, phase.begins + settled, phase.begins + phase.seconds)
        lags = soak_judge.lag_rows(phase.talks, phase)
        self._add(f"{phase.sessions} sessions for {phase.seconds} s: lag in ms", report.table(LAG_HEADER[:-4], [row(found)[:-4]]))
        self._add("Lag over time, ms", report.table(["", *THIRDS], lags))
        self._add(
            f"Memory over time, MB ({len(phase.memory)} looks, judged from {settled:.0f} s on; `card` is what all take of it)",
            report.table(["", *THIRDS], memory),
        )
        grown = [str(each[0]) for each in memory if not soak_judge.flat(each, SPARE_MB)]
        grown += [str(each[0]) for each in lags if not soak_judge.flat(each, SPARE_MS)]
        self._expect(not grown, f"grew over time: {', '.join(grown)}")
        self._expect(not found["late_sends"], f"{found['late_sends']} packets left late: the lag is void")

    def _failures(self, phase: Phase, alone: Alone, vocabulary: Vocabulary) -> None:
        """What was ordered, and how all others fared."""
        ends, by_id = phase.begins + phase.seconds, {talk.session: talk for talk in phase.talks}
        rows: list[list[object]] = [
            [
                f"{fault.ordered - phase.begins:.0f}",
                fault.stage,
                fault.kind,
                by_id[fault.session].name,
                _after(fault),
                soak_judge.outcome(by_id[fault.session], fault, ends),
            ]
            for fault in phase.faults
        ]
        targets = {fault.session for fault in phase.faults}
        others = [talk for talk in phase.talks if talk.session not in targets]
        wrong = {
            talk.name: found
            for talk in others
            if (found := soak_judge.complaints(talk, alone.plan(talk.session), vocabulary.decode, phase.seconds))
        }
        if rows:
            self._add("Failures, each of one session", report.table(["at, s", "stage", "kind", "session", "happened", "outcome"], rows))
        lines = [f"- session {name}: {'; '.join(found[:3])}" for name, found in list(wrong.items())[:20]]
        clean = f"{len(others) - len(wrong)} of {len(others)} decided, said and answered everything as planned, without a missed unit."
        self._add("Sessions to which nothing was done", "\n".join([clean, *lines]))
        self._expect(not wrong, f"{len(wrong)} sessions were harmed to which nothing was done")
        self._expect(all(fault.at is not None for fault in phase.faults), "a failure that was ordered did not happen")

    def _mixing(self, phase: Phase, alone: Alone, vocabulary: Vocabulary, when: str) -> None:
        matches = soak_judge.mixing(phase.talks, heard, alone.reference, self.options.every)
        misread = [text for talk in phase.talks for text in soak_judge.misread(talk, alone.plan(talk.session), vocabulary.decode)]
        bad = [match for match in matches if not match.fits]
        own, other = [each.own_db for each in matches], [each.other_db for each in matches if each.other_db > float("-inf")]
        rows: list[list[object]] = [
            ["responses", len(matches)],
            ["seconds of sound", sum(each.seconds for each in matches)],
            [f"SNR of the worst second against the own reference, dB: lowest (over {soak_judge.OWN_DB:g})", min(own, default=float("nan"))],
            ["its median", report.percentile([each for each in own if each < float("inf")], 50)],
            [f"against any other session's, dB: highest (below {soak_judge.OTHER_DB:g})", max(other, default=float("nan"))],
            ["responses that do not fit", len(bad)],
            ["responses whose words are not the session's", len(misread)],
        ]
        lines = [f"- session {each.name}, {each.response}: own {each.own_db:.1f} dB, other {each.other_db:.1f} dB" for each in bad[:10]]
        self._add(f"Whose sound and words, {when}", report.table(["", ""], rows) + "\n\n" + "\n".join([*lines, *misread[:10]]))
        self.raw.setdefault("matches", []).append(msgspec.to_builtins(matches))
        self._expect(bool(matches) and not bad and not misread, f"sessions were mixed, or nobody spoke ({when})")

    def _killed(self, phase: Phase, stage: str, alone: Alone) -> None:
        """What a kill did to all sessions."""
        (kill,) = phase.kills
        found = [soak_judge.recovery(talk, kill, alone.plan(talk.session), phase.seconds) for talk in phase.talks]
        decides, sounds = [each.decides_s for each in found], [each.sounds_s for each in found]
        rows: list[list[object]] = [
            ["service ready again, s (starts that it took)", f"{kill.ready_s:.1f} ({kill.starts})"],
            ["other processes lived on", kill.alive],
            ["sessions that went on", sum(talk.closed is None for talk in phase.talks)],
            ["next decision after the kill, s: p50, max", _spread(decides)],
            ["next sound of a new response, s: p50, max", _spread(sounds)],
            ["open responses lost", sum(each.lost for each in found)],
            ["units of that moment that were not told of", sum(len(each.untold) for each in found)],
            ["sessions that lost more", sum(bool(each.others) for each in found)],
            ["units missed once it went on", sum(each.late for each in found)],
        ]
        lines = [f"- session {each.name}: {'; '.join(each.others)}" for each in found if each.others][:20]
        self._add(f"Kill of the {stage}, {phase.sessions} sessions", report.table(["", ""], rows) + "\n\n" + "\n".join(lines))
        self.raw.setdefault("recoveries", []).append(msgspec.to_builtins(found))
        self._expect(kill.alive, f"the kill of the {stage} ended other processes")
        self._expect(not any(each.others for each in found), f"sessions lost more than their open response by the kill of the {stage}")

    def _add(self, title: str, body: str) -> None:
        self.sections.append((title, body))
        print(f"{title}\n{body}\n", flush=True)

    def _expect(self, fine: bool, otherwise: str) -> None:
        if not fine:
            self.failed.append(otherwise)

    def write(self) -> None:
        """What is known so far."""
        verdict = "\n".join(f"- {each}" for each in self.failed) or "Everything held."
        report.write(self.name, "The native model under lasting load", [("Verdict", verdict), *self.sections], self.raw)


def _after(fault: soak_load.Fault) -> str:
    return "not" if fault.at is None else f"{fault.at - fault.ordered:.1f} s later"


def _spread(values: list[float]) -> str:
    known = [value for value in values if value == value]
    return f"{report.percentile(known, 50):.1f}, {max(known, default=float('nan')):.1f} ({len(known)} of {len(values)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--checkpoint", type=Path, help="made if it does not exist (19.5 GB); default: in the scratch folder")
    parser.add_argument("--tiny", action="store_true", help="the tiny model: a rehearsal")
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=6.0, help="0: kills alone, whose tables are then native_soak_kills.md")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every n-th response of a session is compared with its reference")
    parser.add_argument("--share", type=float, default=0.5, help="of units that speak")
    parser.add_argument("--steps", type=int, default=5, help="Euler steps of the flow")
    parser.add_argument("--context", type=int, default=3800, help="tokens preloaded: with the prefix nearly a window of 4096")
    parser.add_argument("--held", type=int, default=250, help="tokens of a talker's turn before its first unit")
    parser.add_argument("--gateways", type=int, default=1)
    parser.add_argument("--clients", type=int, default=8, help="processes that speak")
    parser.add_argument("--faults", action="store_true", help="a failure is injected into one session again and again")
    parser.add_argument("--faults-every", type=float, default=30.0, metavar="S")
    parser.add_argument("--fault-kinds", nargs="+", choices=("nan", "step", "over", "error"), default=["nan", "step", "over"])
    parser.add_argument("--kill", nargs="+", choices=STAGES, default=[], help="services killed, each in a phase of its own")
    parser.add_argument("--kill-seconds", type=int, default=120)
    parser.add_argument("--wait-s", type=float, default=120.0, help="with --kill: how long a session waits for a lost stage")
    parser.add_argument("--mps", action="store_true", help="the services share the card through NVIDIA's control daemon")
    parser.add_argument("--env", nargs="*", default=[], metavar="NAME=VALUE", help="settings of the services (thinker:NAME=VALUE: of one)")
    parser.add_argument("--scratch", type=Path, default=Path("/tmp/parley-native"))
    options = parser.parse_args()
    if not (options.minutes or options.kill):
        parser.error("nothing to do: --minutes 0 without --kill")
    options.checkpoint = options.checkpoint or options.scratch / ("bench" if options.tiny else "full")
    # not an option, so that the command in the table is the same wherever the files go
    report.RESULTS = Path(os.environ.get("PARLEY_BENCH_RESULTS", report.RESULTS))
    run = Run(options)
    run.prepare()
    began = time.monotonic()
    phases = asyncio.run(run.measure())
    print(f"measured in {time.monotonic() - began:.0f} s", flush=True)
    run.judge(phases)
    shutil.rmtree(run.folder)
    print((report.RESULTS / f"{run.name}.md").read_text())
    if run.failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
