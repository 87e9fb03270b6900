"""The Lua that the store runs, read from this package. `--@include NAME` puts a shared file (its name begins with `_`) in place, once."""

from __future__ import annotations

import hashlib
from importlib.resources import files

import msgspec

_INCLUDE = "--@include "


class Script(msgspec.Struct, frozen=True):
    """One script: its name, whole text, and SHA-1 as EVALSHA wants it (hexadecimal)."""

    name: str
    text: str
    sha: str


def read_scripts() -> dict[str, Script]:
    """Every script of the package by its name, without those that are only included."""
    scripts = {}
    for file in files(__name__).iterdir():
        if file.name.endswith(".lua") and not file.name.startswith("_"):
            name, text = file.name.removesuffix(".lua"), "\n".join(_lines(file.name, set()))
            scripts[name] = Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
    return scripts


def _lines(name: str, seen: set[str]) -> list[str]:
    lines: list[str] = []
    seen.add(name)
    for line in files(__name__).joinpath(name).read_text(encoding="utf-8").splitlines():
        if not line.startswith(_INCLUDE):
            lines.append(line)
        elif (included := line.removeprefix(_INCLUDE).strip()) not in seen:
            lines += _lines(included, seen)
    return lines
