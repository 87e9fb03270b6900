"""`parley make-random`: a checkpoint of random weights in the released layout."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from .screen import give_up


def make_random(
    path: Annotated[Path, typer.Argument(help="A folder that does not exist yet, or is empty.")],
    full: Annotated[bool, typer.Option("--full", help="The released sizes (19.5 GB) instead of tiny ones (60 MB).")] = False,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 0,
) -> None:
    """Writes a MiniCPM-o 4.5 checkpoint of random weights: it speaks nonsense, at the real thing's cost."""
    if importlib.util.find_spec("torch") is None:
        give_up("make-random needs torch: pip install 'parley[gpu]'")
    command = [sys.executable, "-m", "minicpmo45.random_checkpoint", str(path), "--seed", str(seed)]
    raise typer.Exit(subprocess.run([*command, "--full"] if full else command, check=False).returncode)
