"""Hashed keys from a file, which is read again whenever it changes. What cannot be read leaves the keys as they were."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import structlog
import yaml

from gateway import metrics
from session_store import ApiKey

from .validity import expiry

log = structlog.get_logger()
MAX_BYTES = 16 * 1024 * 1024
_Stamp = tuple[int, int, int]


class KeyFileError(ValueError):
    """The file cannot be read or says what no key can be. The message names the place, never a digest."""


def read_keys(path: Path) -> list[ApiKey]:
    """The file's keys: a YAML or JSON list of ApiKey, or such a list under `keys`. Raises KeyFileError."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise KeyFileError(f"it has more than {MAX_BYTES} bytes")
        # every scalar as it is written: a date stays the text that a key wants
        told = yaml.load(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
        listed = told.get("keys") if isinstance(told, dict) else told
        keys = msgspec.convert([] if told in (None, "") else listed, list[ApiKey], strict=False)
    except OSError as failure:
        raise KeyFileError(f"{failure.strerror}") from None
    except yaml.YAMLError as failure:
        mark = getattr(failure, "problem_mark", None)
        raise KeyFileError(f"no YAML{f' at line {mark.line + 1}' if mark else ''}") from None
    except (msgspec.ValidationError, UnicodeDecodeError) as failure:
        raise KeyFileError(f"{failure}") from None
    except RecursionError:
        raise KeyFileError("it is nested too deeply") from None
    for key in keys:
        if key.not_after is not None and expiry(key) is None:
            raise KeyFileError(f"key {key.id}: not_after is no time")
    for field in ("id", "sha256"):
        if len({getattr(key, field) for key in keys}) < len(keys):
            raise KeyFileError(f"two keys have the same {field}")
    return keys


class KeyFile:
    def __init__(self, path: Path) -> None:
        """Raises KeyFileError."""
        self._path, self._stamp = path, _stamp(path)
        self._keys = read_keys(path)
        self._reading = asyncio.Lock()

    async def keys(self) -> list[ApiKey]:
        """As the file says now; as it said when it could be read last, if it cannot."""
        if _stamp(self._path) != self._stamp:
            async with self._reading:
                if (stamp := _stamp(self._path)) != self._stamp:
                    await self._read_again(stamp)
        return self._keys

    async def _read_again(self, stamp: _Stamp | None) -> None:
        try:
            self._keys = await asyncio.to_thread(read_keys, self._path)
        except KeyFileError as failure:
            metrics.KEY_FILE_READS.labels("failed").inc()
            metrics.KEY_FILE_CURRENT.set(0)
            log.error("key file not read; its keys stay as they were", why=str(failure))
        else:
            metrics.KEY_FILE_READS.labels("read").inc()
            metrics.KEY_FILE_CURRENT.set(1)
            log.info("key file read again", keys=len(self._keys))
        self._stamp = stamp  # not before: nobody else may be judged meanwhile by what the file said


def _stamp(path: Path) -> _Stamp | None:
    """Changes with the file, also when a link to it is turned; None when it is not there."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
