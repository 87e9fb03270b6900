"""A tiny random checkpoint in the released layout, written once a run. `tests/conftest.py` offers it to every test as `tiny_checkpoint`."""

from __future__ import annotations

from pathlib import Path

import pytest

SEED = 45


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder: sizes `minicpmo45.config.tiny()`, seed 45, 60 MB, a second. Never change it: `copy_checkpoint` is for that."""
    import torch

    from minicpmo45.config import tiny
    from minicpmo45.random_checkpoint import write

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny"
    write(folder, tiny(), seed=SEED)
    return folder


def copy_checkpoint(source: Path, target: Path) -> Path:
    """A copy whose files are links to those of `source`: to change one, unlink it and write it anew."""
    for file in source.rglob("*"):
        if file.is_file():
            place = target / file.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(file)
    return target
