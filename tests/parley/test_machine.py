"""What a machine is found to have."""

from __future__ import annotations

from pathlib import Path

import pytest

from parley.supervisor import Machine, look
from parley.supervisor.machine import listed_cards, visible_cards
from parley.supervisor.mps import Mps

from . import fake_mps

LISTED = """GPU 0: NVIDIA H200 (UUID: GPU-11111111-aaaa)
GPU 1: NVIDIA H200 (UUID: GPU-22222222-bbbb)
  MIG 3g.71gb     Device  0: (UUID: MIG-33333333-cccc)
  MIG 3g.71gb     Device  1: (UUID: MIG-44444444-dddd)
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH, with nothing in it."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.mark.parametrize(
    ("value", "cards"),
    [("0,2", ("0", "2")), (" GPU-a , 1", ("GPU-a", "1")), ("", ()), ("-1", ()), ("0,-1,1", ("0",)), ("NoDevFiles", ("NoDevFiles",))],
)
def test_what_cuda_visible_devices_names(value: str, cards: tuple[str, ...]) -> None:
    assert visible_cards(value) == cards


def test_what_nvidia_smi_lists() -> None:
    assert listed_cards(LISTED) == ("GPU-11111111-aaaa", "MIG-33333333-cccc", "MIG-44444444-dddd")
    assert listed_cards("No devices were found\n") == ()


def test_a_machine_without_anything(programs: Path, tmp_path: Path) -> None:
    assert look({}, common_pipes=tmp_path / "none") == Machine()
    assert look({"CUDA_VISIBLE_DEVICES": "1"}, common_pipes=tmp_path / "none").cards == ("1",)
    named = look({"CUDA_MPS_PIPE_DIRECTORY": "/nowhere"}, common_pipes=tmp_path / "none")
    assert (named.pipes, named.serves) == ("/nowhere", False)


def test_nvidia_smi_is_asked(programs: Path, tmp_path: Path) -> None:
    smi = programs / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\n[ $1 = -L ] || exit 9\nwhile IFS= read -r line; do echo \"$line\"; done <<'END'\n{LISTED}END\n")
    smi.chmod(0o755)
    assert look({}, common_pipes=tmp_path / "none").cards == listed_cards(LISTED)
    smi.write_text("#!/bin/sh\necho failed to talk to the driver\nexit 9\n")
    assert look({}, common_pipes=tmp_path / "none").cards is None


def test_a_daemon_that_is_there_is_found(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control = fake_mps.install(programs)
    assert look({"CUDA_VISIBLE_DEVICES": ""}, common_pipes=tmp_path / "none") == Machine(cards=(), control=control)
    daemon = Mps(control, tmp_path / "mps")
    daemon.start()
    try:
        pipes = daemon.env["CUDA_MPS_PIPE_DIRECTORY"]
        for found in (look({"CUDA_MPS_PIPE_DIRECTORY": pipes}), look({}, common_pipes=Path(pipes))):
            assert (found.pipes, found.serves) == (pipes, True)
        monkeypatch.setenv("PATH", "/nowhere")
        assert look({"CUDA_MPS_PIPE_DIRECTORY": pipes}).serves is False, "without the program nobody can ask it"
    finally:
        daemon.stop()
    assert look({"CUDA_MPS_PIPE_DIRECTORY": pipes}).serves is False
