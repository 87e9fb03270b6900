"""How much longer things take on a machine that has more to do than it can."""

from __future__ import annotations

import os


def stretched(seconds: float) -> float:
    """A bound on how long something may take, as it is on an idle machine, for this one as loaded as it is now."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
