"""The time of one short kernel over copies of what it reads, so that it is not found in L2 where it would not be."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.native.timing import once
from torch_kit.graphs import Graphs

REPEATS = 32
"""Calls in one graph: a single one is over before the host knows."""
WARM_S = 0.015
"""A card that waited for a compiler has a low clock."""


def copied_us(device: torch.device, call: Callable[[int], object], copies: int) -> float | None:
    """Microseconds (median) of a call in a graph of many, which take the copies of what is read in turn; nothing without CUDA."""

    def run() -> None:
        for turn in range(max(REPEATS, copies)):
            call(turn % copies)

    graphs = Graphs(device)
    if not graphs.on:
        return None
    graphs.prepare("call", run, tuple)

    def replayed() -> float:
        return once(device, lambda: graphs("call", run, (), tuple))

    until = time.perf_counter() + WARM_S
    while time.perf_counter() < until:
        replayed()
    return statistics.median(replayed() for _ in range(5)) * 1000 / max(REPEATS, copies)
