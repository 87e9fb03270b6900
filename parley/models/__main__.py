"""`python -m parley.models [list | fetch] [MODEL ...]`."""

from __future__ import annotations

import argparse
import sys

from .cache import cache_root
from .errors import ModelError
from .fetch import fetch_models, list_models
from .show import console, progress_bars, table


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0, or 1 with one line on standard error."""
    parser = argparse.ArgumentParser(prog="python -m parley.models", description="The embedded models.")
    parser.add_argument("action", nargs="?", choices=("list", "fetch"), default="list")
    parser.add_argument("models", nargs="*", help="only these (fetch)")
    chosen = parser.parse_args(arguments)
    if chosen.action == "fetch":
        try:
            with progress_bars() as progress:
                fetch_models(progress=progress, names=chosen.models or None)
        except ModelError as failure:
            print(failure, file=sys.stderr)
            return 1
    screen = console()
    screen.print(table(list_models()))
    screen.print(f"cache: {cache_root()}", soft_wrap=True, highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
