"""A gateway's own histograms, read between two moments."""

from __future__ import annotations

import re
import urllib.request

Counts = dict[float, float]
"""Observations at most so long, by upper bound in seconds; the last bound is infinite."""


def read(address: str) -> dict[str, Counts]:
    """Every histogram without labels, by its name."""
    text = urllib.request.urlopen(f"http://{address}/metrics").read().decode()
    found: dict[str, Counts] = {}
    for name, edge, count in re.findall(r'^(\w+_seconds)_bucket\{le="([^"]+)"\} (\S+)', text, re.M):
        found.setdefault(name, {})[float(edge)] = float(count)
    return found


def since(before: Counts, after: Counts) -> Counts:
    return {edge: after[edge] - before.get(edge, 0) for edge in sorted(after)}


def quantile_ms(counts: Counts, q: float) -> float:
    """Linear within a bucket; NaN of nothing."""
    total = counts[float("inf")]
    low, seen = 0.0, 0.0
    for edge, count in counts.items():
        if total and count >= q * total:
            return low * 1000 if edge == float("inf") else (low + (edge - low) * (q * total - seen) / max(count - seen, 1)) * 1000
        low, seen = edge, count
    return float("nan")


def share_within(counts: Counts, seconds: float) -> float:
    """Of 1; `seconds` is a bucket's bound."""
    return counts[seconds] / counts[float("inf")] if counts[float("inf")] else 0.0
