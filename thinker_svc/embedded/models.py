"""Where the thinker finds its model files."""

from __future__ import annotations

import os
from pathlib import Path


class ModelMissing(FileNotFoundError):
    """A model file is not in the cache. One line, with what to do."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"model file {path} is missing; fetch the models with: python -m parley.models fetch")
        self.path = path


def models_root() -> Path:
    """The cache folder: `PARLEY_MODELS`, else the user's cache folder."""
    if chosen := os.environ.get("PARLEY_MODELS"):
        return Path(chosen).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "parley" / "models"


def locate(name: str, root: Path | None = None) -> Path:
    """Path of a model file, such as `smollm2-135m/tokenizer.json`. Raises ModelMissing."""
    path = (root or models_root()) / name
    if not path.exists():
        raise ModelMissing(path)
    return path
