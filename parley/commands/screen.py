"""Standard output and error for people."""

from __future__ import annotations

from typing import NoReturn

import typer
from rich.console import Console

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def complain(message: object) -> None:
    """One line on standard error; markup in the message is text."""
    err.print("[bold red]parley:[/]", end=" ")
    err.print(" ".join(str(message).split()), markup=False)


def give_up(message: object) -> NoReturn:
    """Says what is wrong in one line and ends with exit code 1."""
    complain(message)
    raise typer.Exit(1)
