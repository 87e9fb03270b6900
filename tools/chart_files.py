"""What the chart holds copies of: a chart can read nothing outside its own folder.

`python tools/chart_files.py` makes the copies anew; with `--check` it names those that differ and exits with 1.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = ROOT / "helm" / "parley" / "files"
SOURCES = {
    "profiles": "profiles/*.yaml",
    "dashboards": "deploy/grafana/dashboards/*.json",
    "rules": "deploy/prometheus/*.yml",
}
"""By folder of FILES: what it holds."""
NO_RULES = {"prometheus.yml"}
"""Lies beside the rules, and is Prometheus' own configuration."""


def wanted(root: Path = ROOT) -> dict[str, bytes]:
    """By path within FILES: the content it is to have."""
    return {
        f"{folder}/{source.name}": source.read_bytes()
        for folder, pattern in SOURCES.items()
        for source in sorted(root.glob(pattern))
        if source.name not in NO_RULES
    }


def present(files: Path = FILES) -> dict[str, bytes]:
    """By path within FILES: the content it has."""
    return {str(path.relative_to(files)): path.read_bytes() for path in sorted(files.rglob("*")) if path.is_file()}


def differing(root: Path = ROOT, files: Path = FILES) -> list[str]:
    """Paths within FILES that are missing, other than their source, or without one."""
    sources, copies = wanted(root), present(files)
    return sorted(name for name in sources.keys() | copies.keys() if sources.get(name) != copies.get(name))


def copy(root: Path = ROOT, files: Path = FILES) -> None:
    """Makes the copies what their sources are, and removes those without one."""
    sources = wanted(root)
    for name in differing(root, files):
        path = files / name
        if name in sources:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(sources[name])
        else:
            path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a copy differs")
    if not parser.parse_args().check:
        copy()
    elif names := differing():
        sys.exit(f"copies in {FILES.relative_to(ROOT)} differ from their sources: {', '.join(names)}: make chart-files")


if __name__ == "__main__":
    main()
