"""Shows how the processes come up: live on a terminal, one line each elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


class Board:
    """A supervisor's reporter. A context manager for the time of the start; notices are printed at any time."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description:<10}"),
            TextColumn("{task.fields[state]:<10}"),
            TimeElapsedColumn(),
        )
        self._live = Progress(*columns, console=console, transient=True) if console.is_terminal else None
        self._tasks: dict[str, TaskID] = {}
        self._starting = False

    def __enter__(self) -> Board:
        self._starting = True
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._starting = False
        if self._live:
            self._live.stop()

    def starting(self, name: str) -> None:
        if self._live and self._starting:
            self._tasks[name] = self._live.add_task(name, total=1, state="starting")

    def ready(self, name: str, took_s: float) -> None:
        if self._live and name in self._tasks:
            self._live.update(self._tasks[name], completed=1, state="ready")
        self._console.print(f"[green]ready[/]  {name:<10}{took_s:5.1f} s")

    def note(self, line: str) -> None:
        self._console.print(line, markup=False)

    def notice(self, line: str) -> None:
        self._console.print(line, markup=False, style="yellow")
