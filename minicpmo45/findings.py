"""All that is wrong with a checkpoint, gathered one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from minicpmo45.errors import CheckpointError


class Findings:
    """Errors in the order in which they were found, each once."""

    def __init__(self) -> None:
        self._found: dict[str, CheckpointError] = {}

    def note(self, errors: Iterable[CheckpointError]) -> None:
        """Takes them, too."""
        for error in errors:
            self._found.setdefault(str(error), error)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """A CheckpointError ends the block, is noted, and what comes after the block goes on."""
        try:
            yield
        except CheckpointError as error:
            self.note([error])

    @property
    def all(self) -> tuple[CheckpointError, ...]:
        return tuple(self._found.values())
