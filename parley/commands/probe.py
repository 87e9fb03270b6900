"""`parley probe`: whether a process serves, for health checks and for people."""

from __future__ import annotations

from typing import Annotated

import typer

from parley.probe import HOW, TIMEOUT_S, BadAddress
from parley.probe import probe as ask


def probe(
    url: Annotated[str, typer.Argument(help=HOW)],
    timeout_s: Annotated[float, typer.Option(min=0.1, help="Longest wait for an answer.")] = TIMEOUT_S,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing.")] = False,
) -> None:
    """Asks a process whether it serves. Exit code 0: it does; 1: it says that it does not; 3: nobody answers."""
    try:
        answer, said = ask(url, timeout_s)
    except BadAddress as error:
        raise typer.BadParameter(str(error)) from None
    if not quiet:
        typer.echo(said)
    raise typer.Exit(int(answer))
