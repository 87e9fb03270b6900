"""`parley keys`: who may open sessions. Adds, lists and revokes keys; only their digests are kept."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from .screen import give_up

keys = typer.Typer(help="API keys: add, list or revoke them, in a file or in the store.", no_args_is_help=True)
File = Annotated[Path | None, typer.Option("--file", help="The file that PARLEY_KEYS_FILE names (the default, if it does).")]
Redis = Annotated[bool, typer.Option("--redis", help="The store that PARLEY_REDIS_URL, or PARLEY_REDIS_URL_FILE, names.")]


@keys.command()
def add(
    tenant: Annotated[str, typer.Option(help="Whose sessions they are: another key of it may resume them.")],
    id: Annotated[str | None, typer.Option(help="Stands for the key in lists and logs; drawn if not given.")] = None,
    days: Annotated[float | None, typer.Option(help="It expires after so many days; without it, never.")] = None,
    max_sessions: Annotated[int | None, typer.Option(min=1, help="At once, opened with this key.")] = None,
    tenant_max_sessions: Annotated[int | None, typer.Option(min=1, help="At once, of the whole tenant.")] = None,
    opens_per_minute: Annotated[int | None, typer.Option(min=1, help="Sessions that may be asked for.")] = None,
    stdin: Annotated[bool, typer.Option("--stdin", help="Take the key's text from standard input instead of drawing one.")] = False,
    file: File = None,
    redis: Redis = False,
) -> None:
    """Makes a key and says it once. With neither file nor store its entry goes to stderr, to be put into a file or a Secret."""
    bounds = {"max-sessions": max_sessions, "tenant-max-sessions": tenant_max_sessions, "opens-per-minute": opens_per_minute}
    given = {"id": id, "days": days, **bounds}
    arguments = [f"--{name}={value}" for name, value in given.items() if value is not None]
    _run("add", f"--tenant={tenant}", *arguments, *(["--stdin"] if stdin else []), *_place(file, redis))


@keys.command("list")
def show(file: File = None, redis: Redis = False) -> None:
    """Every key: id, tenant, whether it is good, until when, and its bounds."""
    _run("list", *_place(file, redis))


@keys.command()
def revoke(id: Annotated[str, typer.Argument(help="Of the key.")], file: File = None, redis: Redis = False) -> None:
    """Nothing is opened or resumed with the key any more, and its sessions end."""
    _run("revoke", *_place(file, redis), "--", id)


def _place(file: Path | None, redis: bool) -> list[str]:
    return [*([f"--file={file}"] if file is not None else []), *(["--redis"] if redis else [])]


def _run(*arguments: str) -> None:
    if importlib.util.find_spec("gateway") is None:
        give_up("keys are the gateway's: pip install 'parley[server]'")
    raise typer.Exit(subprocess.run([sys.executable, "-m", "gateway.access.keys_tool", *arguments], check=False).returncode)
