"""What the garbage collector walks through: in every process of the house only what came after its start."""

from __future__ import annotations

import gc

COLLECTED_AFTER = (1_000, 5, 100)
"""Thresholds: young collections stay short (2 ms), and full ones, for what sessions leave behind that ended, are rare."""


def keep_for_good() -> None:
    """What was imported and loaded until now stays, and no collection walks through it again: of torch's modules that stops a step for a
    tenth of a second."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTED_AFTER)
