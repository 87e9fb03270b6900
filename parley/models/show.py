"""Models for people: the table and the progress bars."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table

from .cache import ModelStatus
from .fetch import Phase, Progress

PLAIN_WIDTH = 220  # columns when the output is no terminal: checksums stay on one line


def console() -> Console:
    """Standard output, wide enough for whole checksums when it goes to a file or a pipe."""
    screen = Console()
    return screen if screen.is_terminal else Console(width=PLAIN_WIDTH)


def table(statuses: list[ModelStatus]) -> Group:
    """What each model is, and the checksum of each pinned file."""
    models = Table("model", "for", "licence", "upstream", "package", "present", title="Embedded models", title_justify="left")
    files = Table("model", "file", "sha256", title="Pinned files", title_justify="left")
    for column in (*models.columns, *files.columns):
        column.overflow = "fold"
    for entry in statuses:
        model = entry.model
        present = "yes" if entry.present else "no"
        models.add_row(model.name, model.purpose, model.licence, model.upstream, model.wheel.requirement, present)
        for member in model.members:
            files.add_row(model.name, member.name, member.sha256)
    return Group(models, files)


@contextmanager
def progress_bars(screen: Console | None = None) -> Iterator[Progress]:
    """One bar a model, for `fetch_models(progress=...)`. A model that is there already shows no bar."""
    columns = (TextColumn("{task.description:<16}"), TextColumn("{task.fields[phase]:<9}"), BarColumn(), DownloadColumn())
    tasks: dict[str, TaskID] = {}
    with Bars(*columns, console=screen or Console()) as bars:

        def report(model: str, phase: Phase, done: int, total: int) -> None:
            if model not in tasks:
                if phase == "ready":
                    return
                tasks[model] = bars.add_task(model, total=None, phase=phase)
            task = tasks[model]
            if phase == "download":
                bars.update(task, phase=phase, completed=done, total=total)
                return
            bars.update(task, phase=phase)
            if phase == "ready":
                whole = bars.tasks[bars.task_ids.index(task)].total or 1
                bars.update(task, completed=whole, total=whole)

        yield report
