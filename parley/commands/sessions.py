"""`parley sessions`: where a session is."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Annotated

import typer

from .screen import give_up

sessions = typer.Typer(help="Sessions: where one is, and how it is there.", no_args_is_help=True)


@sessions.callback()
def _group() -> None:
    """Its one command keeps its name."""


@sessions.command()
def show(id: Annotated[str, typer.Argument(help="Of the session: sess_...")]) -> None:
    """Its record in the store of PARLEY_REDIS_URL, and what each of its stages says of it; nothing of what was said."""
    if importlib.util.find_spec("gateway") is None:
        give_up("sessions are the gateway's: pip install 'parley[server]'")
    raise typer.Exit(subprocess.run([sys.executable, "-m", "gateway.sessions_tool", "--", id], check=False).returncode)
