"""The locks of images are those of the present requirements, and a change of these is seen."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tools import lock


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in ("pyproject.toml", *lock.CONSTRAINTS):
        shutil.copy(lock.ROOT / name, tmp_path / name)
    shutil.copytree(lock.ROOT / lock.FOLDER, tmp_path / lock.FOLDER)
    return tmp_path


def test_the_locks_are_of_the_present_constraints() -> None:
    assert lock.stale() == [], "make lock"


def test_another_constraint_makes_every_lock_stale(copy: Path) -> None:
    constraints = copy / "constraints.txt"
    constraints.write_text(constraints.read_text().replace("uvicorn==", "uvicorn==9"))
    assert lock.stale(copy) == list(lock.wanted(copy))


def test_another_requirement_makes_the_locks_stale_that_have_it(copy: Path) -> None:
    project = copy / "pyproject.toml"
    project.write_text(project.read_text().replace('"ctranslate2>=4.5"', '"ctranslate2>=4.6"'))
    assert lock.stale(copy) == ["embedded"]


def test_a_lock_that_is_not_there_is_stale(copy: Path) -> None:
    (copy / lock.FOLDER / "gpu.txt").unlink()
    assert lock.stale(copy) == ["gpu"]


def test_the_store_is_in_no_lock_but_its_own() -> None:
    assert [name for name in lock.wanted() if lock.STORE in lock.pins(lock.ROOT / lock.FOLDER / f"{name}.txt")] == ["valkey"]
