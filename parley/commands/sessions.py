"""`parley sessions`: where a session is, and its end."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Annotated

import typer

from .screen import give_up

sessions = typer.Typer(help="Sessions: where one is, how it is there, and its end.", no_args_is_help=True)


_Id = Annotated[str, typer.Argument(help="Of the session: sess_...")]


@sessions.command()
def show(id: _Id) -> None:
    """Its record in the store of PARLEY_REDIS_URL, and what each of its stages says of it; nothing of what was said."""
    _tool("show", id)


@sessions.command()
def end(id: _Id) -> None:
    """Ends it: nobody may resume it from now on, its client is told within seconds, and its places are freed."""
    _tool("end", id)


def _tool(what: str, id: str) -> None:
    if importlib.util.find_spec("gateway") is None:
        give_up("sessions are the gateway's: pip install 'parley[server]'")
    raise typer.Exit(subprocess.run([sys.executable, "-m", "gateway.sessions_tool", what, "--", id], check=False).returncode)
