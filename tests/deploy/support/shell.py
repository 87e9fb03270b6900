"""Programs, run with a time limit, and what they said when they fail."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

TAIL_CHARS = 4000


class Failed(AssertionError):
    """A program ended with another exit code than 0."""


def run(
    *command: str | Path, timeout_s: float = 120.0, env: Mapping[str, str] | None = None, cwd: Path | None = None, given: str | None = None
) -> str:
    """Its standard output. Raises Failed with the end of all that it said, and subprocess.TimeoutExpired."""
    done = subprocess.run(
        [str(word) for word in command],
        env=env, cwd=cwd, input=given, stdin=subprocess.DEVNULL if given is None else None,
        capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise Failed(f"{_shown(command)} exited with {done.returncode}:\n{(done.stdout + done.stderr)[-TAIL_CHARS:]}")
    return done.stdout


def _shown(command: Sequence[str | Path]) -> str:
    return " ".join(str(word) for word in command)
