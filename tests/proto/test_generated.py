"""The generated code is what its source makes, and the source is clean."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from importlib.resources import files
from pathlib import Path

import grpc_tools
import pytest

PROTO = Path(__file__).resolve().parents[2] / "proto"
SOURCE = "parley_stage/v1/stage.proto"
GENERATED = ("stage_pb2.py", "stage_pb2.pyi", "stage_pb2_grpc.py")


def test_generated_code_fits_its_source(tmp_path: Path) -> None:
    well_known = files(grpc_tools) / "_proto"
    flags = [f"--python_out={tmp_path}", f"--grpc_python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", f"-I{well_known}", *flags, SOURCE]
    subprocess.run(command, check=True, timeout=60)
    for name in GENERATED:
        committed = (PROTO / SOURCE).with_name(name)
        assert (tmp_path / SOURCE).with_name(name).read_text() == committed.read_text(), f"{name} is stale: generate it again"


def test_the_source_is_lint_free() -> None:
    buf = Path(sysconfig.get_path("scripts")) / "buf"
    if not buf.exists():
        pytest.fail("buf is missing: install the dev extra")
    done = subprocess.run([buf, "lint"], cwd=PROTO, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
