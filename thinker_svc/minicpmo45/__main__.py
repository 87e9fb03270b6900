"""`python -m thinker_svc.minicpmo45 check PATH`: holds a checkpoint folder against the model and prints its account."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from minicpmo45.account import check
from minicpmo45.errors import CheckpointError
from thinker_svc.minicpmo45.vocabulary import Vocabulary


def main(arguments: list[str] | None = None) -> int:
    """0 after the table; 1 after one line that names what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m thinker_svc.minicpmo45", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="account for every tensor of a checkpoint").add_argument("path", type=Path)
    options = parser.parse_args(arguments)
    try:
        account = check(options.path)
        Vocabulary.read(options.path, account.config.llm.vocab_size)
    except CheckpointError as error:
        print(f"check: {error}".encode("utf-8", "backslashreplace").decode(), file=sys.stderr)
        return 1
    print(account)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
