"""Which rows of the behaviour matrix have a test: `python tools/matrix.py`.

Rows come from ../shared/matrix.md where it exists, else from tests/matrix_ids.txt; tests carry `@pytest.mark.behaviour("F3")`.
Rows of the V table have no ids there: they are called by their rule, "V:cycle".
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
MATRIX = ROOT.parent / "shared" / "matrix.md"
IDS = ROOT / "tests" / "matrix_ids.txt"
_ROW = re.compile(r"^\| ([A-Z]\d+) \|")
FIELD_REPORT = re.compile(r"FR\d+[a-z]?")
"""Marks of field reports, which are not rows of the matrix."""
_RULE = re.compile(r"^\| ([^|]+?) \|")


def ids_of(markdown: str) -> list[str]:
    """Ids of all rows in the order of the page; rows of the section marked (V) become "V:" and their rule."""
    found, in_rules = [], False
    for line in markdown.splitlines():
        if line.startswith("## "):
            in_rules = "(V)" in line
        elif row := _ROW.match(line):
            found.append(row[1])
        elif in_rules and (rule := _RULE.match(line)) and rule[1] not in ("rule", "---"):
            found.append(f"V:{rule[1]}")
    return found


class Collector:
    """A pytest plugin: the tests that carry each id, and the files that could not be collected."""

    def __init__(self) -> None:
        self.tests: dict[str, list[str]] = {}
        self.broken: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for mark in item.iter_markers("behaviour"):
                for name in mark.args:
                    self.tests.setdefault(name, []).append(item.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.broken.append(report.nodeid)


def collect(root: Path, below: Sequence[str] = ("tests",)) -> Collector:
    """Collect the tests below these folders of `root` as `pytest` does, quietly."""
    collector = Collector()
    sys.path.insert(0, str(root))
    arguments = ["--collect-only", "--continue-on-collection-errors", "-p", "no:cacheprovider", f"--rootdir={root}"]
    with redirect_stdout(io.StringIO()) as said, redirect_stderr(said):
        status = pytest.main([*arguments, *(str(root / each) for each in below)], [collector])
    if status in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERNAL_ERROR):
        sys.exit(said.getvalue())
    return collector


def functions(nodeids: Iterable[str]) -> list[str]:
    """One name for all parametrizations of a test, without the folder of all tests."""
    return list(dict.fromkeys(nodeid.partition("[")[0].removeprefix("tests/") for nodeid in nodeids))


def group(name: str) -> str:
    return name.partition(":")[0] if ":" in name else name.rstrip("0123456789")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--missing", action="store_true", help="show only the rows without a test")
    parser.add_argument("--write-ids", action="store_true", help=f"refresh {IDS.name} from the matrix")
    parser.add_argument("below", nargs="*", default=["tests"], help="folders of tests to look into; all of them when left out")
    options = parser.parse_args(arguments)
    ids = ids_of(MATRIX.read_text(encoding="utf-8")) if MATRIX.exists() else IDS.read_text(encoding="utf-8").splitlines()
    if options.write_ids:
        IDS.write_text("\n".join(ids) + "\n", encoding="utf-8")
    collector = collect(ROOT, options.below)
    console = Console(width=None if sys.stdout.isatty() else 160)
    rows = Table("id", "tests", "where", title="Behaviour matrix")
    for name in ids:
        carriers = functions(collector.tests.get(name, []))
        if not (options.missing and carriers):
            rows.add_row(
                name, str(len(carriers)) if carriers else "[red]none[/]", "\n".join(carriers[:3]) + (" …" if len(carriers) > 3 else "")
            )
    console.print(rows)
    counts = Table("group", "rows", "with a test", "without")
    total, done = Counter(map(group, ids)), Counter(group(name) for name in ids if name in collector.tests)
    for name in total:
        counts.add_row(name, str(total[name]), str(done[name]), str(total[name] - done[name]))
    counts.add_row("all", str(len(ids)), str(done.total()), str(len(ids) - done.total()))
    console.print(counts)
    if unknown := sorted(name for name in set(collector.tests) - set(ids) if not FIELD_REPORT.fullmatch(name)):
        console.print(f"ids that no row has: {', '.join(unknown)}", style="yellow")
    if collector.broken:
        console.print(f"not collected: {', '.join(collector.broken)}", style="yellow")
    return 0


if __name__ == "__main__":
    sys.exit(main())
