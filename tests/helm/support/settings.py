"""What the code reads from its environment, by process."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pydantic import AliasChoices, SecretStr
from pydantic_settings import BaseSettings

ROOT = Path(__file__).parents[3]
PACKAGES = {
    "gateway": ("gateway", "session_store"),
    "vad": ("vad_svc", "stage_kit", "session_store"),
    "thinker": ("thinker_svc", "minicpmo45", "stage_kit", "session_store"),
    "talker": ("talker_svc", "minicpmo45", "stage_kit", "session_store"),
    "vocoder": ("vocoder_svc", "minicpmo45", "stage_kit", "session_store"),
}
"""By process: where its settings are."""
_CLASS = re.compile(r"^class \w+\(\w*Settings\):", re.MULTILINE)


@cache
def variables(package: str) -> frozenset[str]:
    """Names of the environment variables that settings of a package have."""
    return frozenset(name for settings in _classes(package) for name in _names(settings))


def known_to(process: str) -> frozenset[str]:
    """Of a process of PACKAGES."""
    return frozenset[str]().union(*map(variables, PACKAGES[process]))


def _classes(package: str) -> Iterator[type[BaseSettings]]:
    for path in sorted((ROOT / package).rglob("*.py")):
        if not _CLASS.search(path.read_text(encoding="utf-8")):
            continue
        parts = path.relative_to(ROOT).with_suffix("").parts
        module = importlib.import_module(".".join(parts))
        for each in vars(module).values():
            if isinstance(each, type) and issubclass(each, BaseSettings) and each.__module__ == module.__name__:
                yield each


def _names(settings: type[BaseSettings]) -> Iterator[str]:
    prefix = str(settings.model_config.get("env_prefix", ""))
    for name, field in settings.model_fields.items():
        alias = field.validation_alias
        names = (
            [str(each) for each in alias.choices]
            if isinstance(alias, AliasChoices)
            else [str(alias)]
            if alias
            else [f"{prefix}{name}".upper()]
        )
        yield from names
        if field.annotation is SecretStr:
            yield from (f"{each}_FILE" for each in names)
