"""No limit without a row in the table, no row without a test, no limit without a unit, and none that nobody reads."""

from __future__ import annotations

import ast
import tomllib
import types
from functools import cache
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from pydantic_settings import BaseSettings

from tests.limits.table import TABLE, Choice

ROOT = Path(__file__).parents[2]
FOUND = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]["find"]["include"]
PACKAGES = sorted({name.rstrip(".*") for name in FOUND} - {"parley_stage"})
UNITS = (
    *("ms", "s", "bytes", "count", "sessions", "items", "connections", "chars", "tokens", "parts", "tools", "levels", "events", "commands"),
    *(
        "positions",
        "nodes",
        "frames",
        "words",
        "sentences",
        "slots",
        "workers",
        "threads",
        "restarts",
        "rms",
        "units",
        "codes",
        "steps",
        "minute",
    ),
)
UNITLESS = {"threshold", "temperature", "hysteresis", "timeout_factor", "partial_share", "frames_per_step", "batch", "burst"}
"""Shares, factors, counts of what their engine is asked for, and what already names two units."""


def numbers(settings: type[Any]) -> set[str]:
    """Names of the fields that hold a number."""
    return {name for name, hint in get_type_hints(settings, include_extras=False).items() if _is_number(hint) and not name.startswith("_")}


def _is_number(hint: Any) -> bool:
    if get_origin(hint) in (Union, types.UnionType):
        return any(_is_number(each) for each in get_args(hint))
    return hint in (int, float)


@cache
def functions_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@cache
def trees() -> dict[Path, ast.Module]:
    """The product's code."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for package in PACKAGES for path in (ROOT / package).rglob("*.py")}


@cache
def names_read() -> frozenset[str]:
    """Every name that the product reads from something, or passes on as a text to who does."""
    nodes = [node for tree in trees().values() for node in ast.walk(tree)]
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return frozenset({node.attr for node in nodes if isinstance(node, ast.Attribute)} | texts)


@pytest.mark.behaviour("X14")
@pytest.mark.parametrize("settings", TABLE, ids=lambda each: f"{each.__module__}.{each.__name__}")
def test_every_number_has_its_row(settings: type[Any]) -> None:
    assert numbers(settings) == set(TABLE[settings])


@pytest.mark.behaviour("X14")
def test_every_settings_class_is_in_the_table() -> None:
    named = set()
    for path, tree in trees().items():
        module = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and _has_a_number(node)]
        named |= {(module, node.name) for node in classes if _is_settings(node) or node.name in ("Limits", "WireLimits")}
    known = {(settings.__module__, settings.__name__) for settings in TABLE}
    # the talker's clause limits are its settings, regrouped
    assert named - known == {("talker_svc.clauses", "Limits")}


def _has_a_number(node: ast.ClassDef) -> bool:
    fields = (each.annotation for each in node.body if isinstance(each, ast.AnnAssign))
    names = {name.id for field in fields for name in ast.walk(field) if isinstance(name, ast.Name)}
    return bool(names & {"int", "float", "PositiveInt"})


def _is_settings(node: ast.ClassDef) -> bool:
    return any(isinstance(base, ast.Name) and base.id == BaseSettings.__name__ for base in node.bases)


@pytest.mark.behaviour("X14")
@pytest.mark.parametrize("settings", TABLE, ids=lambda each: f"{each.__module__}.{each.__name__}")
def test_every_row_names_a_test_that_there_is(settings: type[Any]) -> None:
    for name, limit in TABLE[settings].items():
        if isinstance(limit, Choice):
            assert limit.why
            continue
        file, _, test = limit.proof.partition("::")
        assert test in functions_of(ROOT / "tests" / file), f"{name}: {limit.proof}"


@pytest.mark.behaviour("X14")
@pytest.mark.parametrize("settings", TABLE, ids=lambda each: f"{each.__module__}.{each.__name__}")
def test_every_limit_names_its_unit_and_is_read(settings: type[Any]) -> None:
    for name, limit in TABLE[settings].items():
        if not isinstance(limit, Choice) and name not in UNITLESS:
            assert name.rpartition("_")[2] in UNITS, name
        assert name in names_read(), f"nobody reads {settings.__name__}.{name}"
