"""Prefixes that sessions of one prompt and voice share: each exists once, as long as somebody reads it."""

from __future__ import annotations

from torch_kit.page_table import PageTable, SharedPrefix

Key = tuple[str, str]
"""Instructions, and the key of the voice or nothing."""


class Prefixes:
    """Counted. A table that attaches to a prefix has not set pages aside for it, so what all tables and prefixes hold together is never
    more than one full reservation for each session."""

    def __init__(self) -> None:
        self._held: dict[Key, SharedPrefix] = {}

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: Key) -> SharedPrefix | None:
        """The prefix, if it was published."""
        return self._held.get(key)

    def publish(self, key: Key, table: PageTable) -> SharedPrefix:
        """The table's prefix is complete: others may read it."""
        self._held[key] = table.share_prefix()
        return self._held[key]

    def tidy(self) -> None:
        """Gives back what no table reads."""
        for key, prefix in list(self._held.items()):
            if prefix.holders == 1:
                del self._held[key]
                prefix.release()
