"""The command line. Its commands are thin: they read options, run one thing, and end with an exit code."""

from __future__ import annotations

import typer

from .costs import costs
from .keys import keys
from .make_random import make_random
from .models import models
from .probe import probe
from .sessions import sessions
from .talk import talk
from .up import up

app = typer.Typer(
    name="parley",
    help="Live spoken conversations, on this machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(up)
app.command()(talk)
app.command()(make_random)
app.command()(probe)
app.command()(costs)
app.add_typer(models, name="models")
app.add_typer(keys, name="keys")
app.add_typer(sessions, name="sessions")

__all__ = ["app"]
