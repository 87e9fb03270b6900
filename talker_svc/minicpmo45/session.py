"""What the engine holds of a slot."""

from __future__ import annotations

from dataclasses import dataclass, field

from stage_kit import Label
from talker_svc.minicpmo45.turn import Turn
from torch_kit.page_table import PageTable


@dataclass(slots=True)
class Session:
    """`Slot.state`."""

    row: int
    """Of the sampler."""
    table: PageTable
    turns: dict[Label, Turn] = field(default_factory=dict)
    """In order; only the first may have begun, and the table is its."""
    ignored: set[Label] = field(default_factory=set)
    """Turns that failed here while more of them was to come."""

    @property
    def turn(self) -> Turn | None:
        """The one that is spoken now or next."""
        return next(iter(self.turns.values()), None)
