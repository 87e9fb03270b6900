"""The matrix tool: reads the page, finds the tests."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "matrix.py"
PAGE = """# The matrix
| id | behaviour |
|---|---|
| F1 | a row |
## What a profile is refused for (V): the rule
| rule | string |
|---|---|
| two bounds | a message with a pipe |
## Others (X)
| id | behaviour |
|---|---|
| X10 | a row |
| Xen | not a row |
"""


def test_rows_and_rules_become_ids() -> None:
    assert runpy.run_path(str(TOOL))["ids_of"](PAGE) == ["F1", "V:two bounds", "X10"]


def test_the_committed_ids_are_those_of_the_matrix() -> None:
    page = ROOT.parent / "shared" / "matrix.md"
    if not page.exists():
        pytest.skip("the matrix page is not beside this checkout")
    assert runpy.run_path(str(TOOL))["ids_of"](page.read_text(encoding="utf-8")) == (
        (ROOT / "tests" / "matrix_ids.txt").read_text(encoding="utf-8").splitlines()
    )


def test_it_lists_rows_with_and_without_tests() -> None:
    done = subprocess.run([sys.executable, str(TOOL), "tests/gateway/graph"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = {line.split("│")[1].strip(): line for line in done.stdout.splitlines() if line.count("│") > 3}
    assert "test_refusals.py" in lines["V:cycle"]
    assert "none" in lines["X1"] and "ids that no row has" not in done.stdout and "not collected" not in done.stdout
    total, done_rows, missing = (int(cell) for cell in lines["all"].split("│")[2:5])
    assert 0 < done_rows < total
    assert total == done_rows + missing == len((ROOT / "tests" / "matrix_ids.txt").read_text(encoding="utf-8").splitlines())


def test_tests_name_rows_that_there_are(request: pytest.FixtureRequest) -> None:
    """All tests of this run."""
    tool = runpy.run_path(str(TOOL))
    rows = set((ROOT / "tests" / "matrix_ids.txt").read_text(encoding="utf-8").splitlines())
    named = {name for item in request.session.items for mark in item.iter_markers("behaviour") for name in mark.args}
    assert {name for name in named if not tool["FIELD_REPORT"].fullmatch(name)} <= rows
