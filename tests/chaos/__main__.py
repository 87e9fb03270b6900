"""`python -m tests.chaos`: strikes a house of real processes until every scenario has run; see scenarios.

Environment: SEED repeats a run's choices, SHORT=1 strikes each way once or twice, ONLY=name[,name] chooses scenarios.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.chaos.ledger import Tally
from tests.chaos.scenarios import SCENARIOS, house, strike


def main() -> None:
    argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    seed = int(os.environ.get("SEED") or secrets.randbelow(1_000_000))
    short = os.environ.get("SHORT", "0") not in ("", "0")
    only = [name for name in os.environ.get("ONLY", "").split(",") if name]
    unknown = set(only) - {scenario.name for scenario in SCENARIOS}
    if unknown:
        sys.exit(f"no such scenario: {', '.join(sorted(unknown))}; there are {', '.join(each.name for each in SCENARIOS)}")
    print(f"SEED={seed}{' SHORT=1' if short else ''}", flush=True)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that no process of the house is left behind
    folder = Path(tempfile.mkdtemp(prefix="parley-chaos-"))
    world = house(folder, seed, lambda line: print(line, flush=True))
    failed = []
    whole = Tally()
    try:
        for scenario in SCENARIOS:
            if not only or scenario.name in only:
                tally = asyncio.run(strike(world, scenario, short=short))
                whole.add(tally)
                if not tally.clean:
                    failed.append(scenario.name)
    finally:
        world.house.stop()
    print(f"all: {whole.line()}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; SEED={seed}; logs: {folder}")
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
