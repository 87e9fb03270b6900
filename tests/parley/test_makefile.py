"""The two commands: what `make run` would do, without doing it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKE = shutil.which("make") or "/usr/bin/make"


def make(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    if path is not None:
        env["PATH"] = path
    return subprocess.run([MAKE, *arguments], cwd=ROOT, env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """An environment as the first `make run` leaves it."""
    venv = tmp_path / "venv"
    venv.mkdir()
    for name in ("pyvenv.cfg", ".installed-embedded"):
        (venv / name).touch()
    return venv


def test_a_second_run_installs_nothing(installed: Path) -> None:
    done = make("-n", "run", f"VENV={installed}")
    assert done.returncode == 0, done.stderr
    assert "pip" not in done.stdout
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [
        [f"{installed}/bin/parley", "models"],
        ["exec", f"{installed}/bin/parley"],
    ]


def test_a_first_run_installs_the_embedded_default_under_pins(tmp_path: Path) -> None:
    done = make("-n", "run", f"VENV={tmp_path}/none")
    assert "install -q -c constraints.txt -e '.[embedded]'" in done.stdout
    assert "dev" not in done.stdout.replace("/dev/null", "")


@pytest.mark.parametrize(("once", "given"), [("ONCE=1", True), ("ONCE=0", False), ("ONCE=", False)])
def test_the_variables_reach_the_command(once: str, given: bool, installed: Path) -> None:
    last = make("-n", "run", f"VENV={installed}", once, "PORT=9001", "WAV=my question.wav", "REPLY=out.wav").stdout.splitlines()[-1]
    assert '--port "9001" --speak "my question.wav" --reply "out.wav"' in last
    assert last.endswith(" --once") == given


def test_a_missing_python_is_said_in_one_line(tmp_path: Path) -> None:
    done = make("run", f"VENV={tmp_path}/venv", path=str(tmp_path))
    said = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert done.returncode != 0
    assert len(said) == 1
    assert said[0].startswith("parley: no suitable Python: 3.11, 3.12 or 3.13")
    assert not (tmp_path / "venv").exists()


def test_a_plain_make_lists_the_commands() -> None:
    done = make()
    for command in ("make run", "make test", "make matrix"):
        assert command in done.stdout
