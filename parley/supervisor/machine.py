"""What the machine has for services that run on a GPU."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from . import mps

SMI_TIMEOUT_S = 10.0
COMMON_PIPES = Path("/tmp/nvidia-mps")
"""Where a daemon listens, and clients look for it, if nothing else is said."""
_LISTED = re.compile(r"^(\s*)(?:GPU|MIG).*\(UUID: ([^)]+)\)", re.MULTILINE)


class Machine(Struct, frozen=True):
    """cards: as CUDA_VISIBLE_DEVICES names them; None: nothing is known of them. control: the program that starts MPS, if there is one.

    pipes: folder of a daemon that somebody else started or names; serves: whether it answers.
    """

    cards: tuple[str, ...] | None = None
    control: str | None = None
    pipes: str | None = None
    serves: bool = False


def look(environment: Mapping[str, str] = os.environ, *, common_pipes: Path = COMMON_PIPES) -> Machine:
    """Asks nvidia-smi, for at most SMI_TIMEOUT_S, unless CUDA_VISIBLE_DEVICES tells; and the daemon that processes here would find."""
    control = shutil.which(mps.CONTROL)
    named = environment.get(mps.PIPES)
    pipes = Path(named) if named else common_pipes
    serves = control is not None and _is_trusted(pipes) and mps.ask(control, pipes, "get_server_list") is not None
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    cards = visible_cards(visible) if visible is not None else _listed_cards()
    return Machine(cards, control, str(pipes) if named or serves else None, serves)


def visible_cards(value: str) -> tuple[str, ...]:
    """Of a CUDA_VISIBLE_DEVICES: what follows a card that cannot be (-1, nothing) does not count."""
    cards: list[str] = []
    for card in (each.strip() for each in value.split(",")):
        if not card or card.startswith("-"):
            break
        cards.append(card)
    return tuple(cards)


def listed_cards(text: str) -> tuple[str, ...]:
    """UUIDs in the output of `nvidia-smi -L`; of a card that is cut into instances (MIG), the instances."""
    found: list[tuple[str, bool]] = []
    for indent, uuid in _LISTED.findall(text):
        if indent and found and not found[-1][1]:
            found.pop()  # the card itself: nothing can run on it
        found.append((uuid, bool(indent)))
    return tuple(uuid for uuid, _ in found)


def _listed_cards() -> tuple[str, ...] | None:
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=SMI_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return listed_cards(done.stdout) if done.returncode == 0 else None


def _is_trusted(pipes: Path) -> bool:
    """Whether a daemon's pipes are there, made by root or by this user: anybody may write into the common folder."""
    try:
        return (pipes / "control").stat().st_uid in (0, os.getuid())
    except OSError:
        return False
