"""What of an engine's outputs leaves together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from stage_kit import Engine


@contextmanager
def gatherings(engine: Engine, outputs: Sequence[list[Any]]) -> Iterator[list[list[int]]]:
    """Of each gathering of the engine: how many outputs each of these lists got within."""
    found: list[list[int]] = []

    @contextmanager
    def gather() -> Iterator[None]:
        before = [len(each) for each in outputs]
        yield
        found.append([len(each) - count for each, count in zip(outputs, before, strict=True)])

    usual = engine.together
    engine.on_together(gather)
    try:
        yield found
    finally:
        engine.on_together(usual)
