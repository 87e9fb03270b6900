"""`python -m thinker_svc.minicpmo45 check PATH`: holds a checkpoint folder against the model and prints its account."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from minicpmo45.account import examine
from minicpmo45.config import Config
from minicpmo45.errors import CheckpointError
from minicpmo45.findings import Findings
from thinker_svc.minicpmo45.vocabulary import Vocabulary


def main(arguments: list[str] | None = None) -> int:
    """0 after the table; 1 after a line for each thing that is wrong, which names it."""
    parser = argparse.ArgumentParser(prog="python -m thinker_svc.minicpmo45", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("check", help="account for every tensor of a checkpoint and every value in it")
    command.add_argument("path", type=Path)
    command.add_argument("--fast", action="store_true", help="headers alone: no value is read, no network opened")
    options = parser.parse_args(arguments)
    examined, found = examine(options.path, values=not options.fast), Findings()
    found.note(examined.faults)
    with found.noting():
        Vocabulary.read(options.path, (examined.account.config if examined.account else Config()).llm.vocab_size)
    for error in found.all:
        print(_line(error), file=sys.stderr)
    if found.all:
        return 1
    print(examined.account)
    return 0


def _line(error: CheckpointError) -> str:
    return f"check: {error}".encode("utf-8", "backslashreplace").decode()


if __name__ == "__main__":
    raise SystemExit(main())
