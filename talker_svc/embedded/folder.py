"""Where the fetched models lie."""

from __future__ import annotations

import os
from pathlib import Path

VOICE = "piper-joe"


def voice_folder(models: Path | None) -> Path:
    """The voice's folder below `models`; without it below `$XDG_CACHE_HOME/parley/models` or `~/.cache/parley/models`."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (models or cache / "parley" / "models").expanduser() / VOICE
