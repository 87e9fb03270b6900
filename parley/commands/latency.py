"""When things happened in a spoken turn, and the table of it."""

from __future__ import annotations

from msgspec import Struct
from rich.box import SIMPLE
from rich.console import JustifyMethod
from rich.table import Table

STAGES = {"speech stopped": "turn", "committed": "client", "transcript": "asr", "first text": "llm", "first audio": "talker, vocoder"}
"""The stage whose work a step ends."""
_COLUMNS: dict[str, JustifyMethod] = {"step": "left", "stage": "left", "from end of voice": "right", "from step before": "right"}


class Timeline(Struct):
    """Monotonic seconds. `voice_end` is when the last voiced sample was sent; marks are the first time of each step in the last turn."""

    voice_end: float | None = None
    marks: dict[str, float] = {}

    def mark(self, step: str, now: float) -> None:
        """Keeps the first time of a step."""
        self.marks.setdefault(step, now)

    def forget(self, *steps: str) -> None:
        """A new turn began: what the turn before it reached does not count."""
        for step in steps:
            self.marks.pop(step, None)

    def after_voice_ms(self, step: str) -> float | None:
        """Milliseconds from the end of the voice to a step; None when either is unknown."""
        at = self.marks.get(step)
        return (at - self.voice_end) * 1000.0 if at is not None and self.voice_end is not None else None


def latency_table(timeline: Timeline) -> Table:
    """One row a step, in the order in which they happened."""
    table = Table(title="Latency", title_justify="left", box=SIMPLE)
    for name, justify in _COLUMNS.items():
        table.add_column(name, justify=justify, no_wrap=True)
    before = 0.0
    for step in sorted(timeline.marks, key=timeline.marks.__getitem__):
        if (at := timeline.after_voice_ms(step)) is not None:
            table.add_row(step, STAGES.get(step, ""), f"{at:.0f} ms", f"{at - before:.0f} ms")
            before = at
    return table
