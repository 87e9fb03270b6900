"""What can be wrong with a checkpoint folder. Every message is one line that names the thing at fault."""

from __future__ import annotations


class CheckpointError(ValueError):
    """A file, field, token or tensor of a checkpoint is missing, surplus, misshapen or unusable. `item` names it."""

    def __init__(self, item: str, why: str) -> None:
        super().__init__(f"{item}: {why}")
        self.item = item
        self.why = why


class DownloadError(RuntimeError):
    """A file could not be fetched whole. What came of it stays in its `.partial` file for the next attempt."""

    def __init__(self, item: str, why: str) -> None:
        super().__init__(f"{item}: {why}")
        self.item = item
        self.why = why


class Offline(DownloadError):
    """No host was named: nothing is fetched unless somebody asks for it."""


class Damaged(DownloadError):
    """What arrived is not what was announced. It was removed, so that the next attempt begins anew."""
