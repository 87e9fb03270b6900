"""Which Parley this is."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """Of the installed package; "unknown" where the sources run as they lie."""
    try:
        return metadata.version("parley")
    except metadata.PackageNotFoundError:
        return "unknown"
