"""The command line: `parley up`, `parley talk`, `parley models`, `parley keys`, `parley sessions`, `parley probe`, `parley costs`,
`parley make-random`.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line; needs the extra `parley[server]`, and says so when it is missing."""
    try:
        from .commands import app
    except ModuleNotFoundError as error:
        sys.exit(f"the parley command needs more than the client ({error.name} is missing): pip install 'parley[server]'")
    app()


if __name__ == "__main__":
    main()
