"""`python -m tools.dashboards` writes deploy/grafana/dashboards anew; with `--check` it names those that differ and exits with 1."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from tools.dashboards.overview import overview
from tools.dashboards.quality import quality
from tools.dashboards.sessions import sessions
from tools.dashboards.stages import stages

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana" / "dashboards"


def boards() -> dict[str, str]:
    """By file name: its content."""
    built = {"overview": overview(), "quality": quality(), "stages": stages(), "sessions": sessions()}
    return {f"parley-{name}.json": json.dumps(board, cls=JSONEncoder, indent=1, sort_keys=True) + "\n" for name, board in built.items()}


def differing() -> list[str]:
    """Files that are missing, other than their code, or without one."""
    wanted, present = boards(), {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    return sorted(name for name in wanted.keys() | present.keys() if wanted.get(name) != present.get(name))


def write() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    wanted = boards()
    for path in FOLDER.glob("*.json"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a dashboard differs")
    if not parser.parse_args().check:
        write()
    elif names := differing():
        sys.exit(f"dashboards differ from their code: {', '.join(names)}: python -m tools.dashboards")


if __name__ == "__main__":
    main()
