"""The clock of a device, and what ran on it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from torch_kit.graphs import Graphs


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def once(device: torch.device, call: Callable[[], object]) -> float:
    """Milliseconds from an idle device to an idle device, Python and launches included."""
    wait(device)
    began = time.perf_counter()
    call()
    wait(device)
    return (time.perf_counter() - began) * 1000


def timed(device: torch.device, call: Callable[[], object], repeats: int = 8, warm: int = 3) -> list[float]:
    for _ in range(warm):
        call()
    return [once(device, call) for _ in range(repeats)]


def kernels(device: torch.device, call: Callable[[], object]) -> tuple[int, float | None]:
    """Kernels and copies of one call, and the milliseconds in which they ran; nothing without CUDA."""
    if device.type != "cuda":
        return 0, None
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    wait(device)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        wait(device)
    # the raw records: trees of ten thousand events take seconds to build
    ran = [each for each in profiler.profiler.kineto_results.events() if each.device_type() == DeviceType.CUDA]
    return len(ran), sum(each.duration_ns() for each in ran) / 1e6


def graphed(device: torch.device, call: Callable[[], object], repeats: int = 8) -> float | None:
    """Milliseconds (median) of a replay of `call`, whose inputs lie where they are; nothing without CUDA."""
    graphs = Graphs(device)
    if not graphs.on:
        return None
    return statistics.median(timed(device, lambda: graphs("call", call, (), tuple), repeats))
