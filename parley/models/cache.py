"""The folder where models lie, and the stamp that says that one is whole."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from .manifest import Model

STAMP = ".parley-model.json"


class Stamp(msgspec.Struct, frozen=True):
    """Written last into a model's folder, before the folder takes its name."""

    digest: str
    sizes: dict[str, int]


class ModelStatus(msgspec.Struct, frozen=True):
    """A model of the manifest and whether the cache holds it, whole and of the pinned version."""

    model: Model
    folder: Path
    present: bool


def cache_root() -> Path:
    """`PARLEY_MODELS`, else `$XDG_CACHE_HOME/parley/models`, else `~/.cache/parley/models`."""
    if chosen := os.environ.get("PARLEY_MODELS"):
        return Path(chosen).expanduser()
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches) / "parley" / "models"
    return Path.home() / ".cache" / "parley" / "models"


def status(model: Model, root: Path) -> ModelStatus:
    """Looks at the stamp and the files' sizes, not at their contents."""
    folder = root / model.name
    return ModelStatus(model, folder, _whole(model, folder))


def write_stamp(model: Model, folder: Path) -> None:
    """Raises FileNotFoundError when a file of the model is missing."""
    sizes = {name: (folder / name).stat().st_size for name in model.files}
    (folder / STAMP).write_bytes(msgspec.json.encode(Stamp(model.digest, sizes)))


def _whole(model: Model, folder: Path) -> bool:
    try:
        stamp = msgspec.json.decode((folder / STAMP).read_bytes(), type=Stamp)
        return stamp.digest == model.digest and all((folder / name).stat().st_size == size for name, size in stamp.sizes.items())
    except (OSError, msgspec.MsgspecError):
        return False
