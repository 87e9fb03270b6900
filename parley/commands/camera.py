"""Recorded camera frames: files, or folders of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from parley.client.errors import BadPicture
from parley.client.limits import Limits
from parley.client.pictures import check_picture

ENDINGS = frozenset({".jpg", ".jpeg", ".png"})
PERIOD_MS = 1000


class BadFrames(Exception):
    """These files cannot be shown; the message says why in one line."""


def load_frames(paths: Iterable[Path], limits: Limits) -> tuple[bytes, ...]:
    """JPEG and PNG files in the order given; of a folder all that end so, by name. Raises BadFrames."""
    return tuple(_read(file, limits) for path in paths for file in _files(path))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.suffix.lower() in ENDINGS)
    if not found:
        raise BadFrames(f"there is no JPEG or PNG file in {path}")
    return found


def _read(file: Path, limits: Limits) -> bytes:
    try:
        with file.open("rb") as opened:
            data = opened.read(limits.picture_bytes + 1)  # however long it is
        check_picture(data, None, limits.picture_bytes)
    except OSError as error:
        raise BadFrames(f"cannot read {file}: {error.strerror or error}") from error
    except BadPicture as error:
        raise BadFrames(f"cannot show {file}: it {error.why}") from error
    return data
