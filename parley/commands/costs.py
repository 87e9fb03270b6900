"""`parley costs`: tells Kubernetes which pods hold the fewest sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from .screen import give_up


def costs(
    selector: Annotated[str, typer.Option(help="Labels of the pods, as kubectl takes them.")],
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two rounds.")] = 30.0,
    step: Annotated[int, typer.Option(min=1, help="Sessions that make a difference.")] = 4,
    api: Annotated[str, typer.Option(help="URL of the API; in a pod it is known.")] = "",
    account: Annotated[Path | None, typer.Option(help="Folder with token, namespace and ca.crt; in a pod it is known.")] = None,
    alive: Annotated[Path | None, typer.Option(help="A file to hold the second until which the process may be silent.")] = None,
    log_level: Annotated[str, typer.Option(envvar="PARLEY_LOG_LEVEL")] = "info",
) -> None:
    """Keeps the deletion cost of pods at the number of their sessions, so that a scale-in takes the emptiest first."""
    # no other command needs what these bring along
    from parley.costs import ACCOUNT, Options, api_of_this_pod, serve

    url = api or api_of_this_pod()
    if not _is_known(url):
        give_up("the API is at https://HOST:PORT; outside of a pod --api says it")
    serve(Options(selector, url, account or ACCOUNT, every, step, alive=alive), log_level)


def _is_known(url: str) -> bool:
    try:
        address = urlsplit(url)
        return address.scheme == "https" and bool(address.hostname) and address.port != 0
    except ValueError:
        return False
