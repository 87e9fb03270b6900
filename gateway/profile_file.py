"""Profiles as files."""

from __future__ import annotations

from pathlib import Path

from .graph import Problem, Profile, ProfileError, load_profile


def load_profile_file(path: str | Path) -> Profile:
    """Read the profile at `path`; it is called what the file is. Raises ProfileError, also for a file that cannot be read."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ProfileError(path.stem, (Problem("", f"the file cannot be read: {error.strerror}"),)) from error
    except UnicodeDecodeError as error:
        raise ProfileError(path.stem, (Problem("", "the file is not UTF-8"),)) from error
    return load_profile(text, path.stem)
