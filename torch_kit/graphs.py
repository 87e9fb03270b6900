"""CUDA graphs of functions whose shapes are fixed: captured when a key is first met, replayed from then on."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
SPARE_BYTES = 1 << 28
"""Free memory of a process that is given back before a capture, if it is more."""


@dataclass(frozen=True, slots=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    output: Any


class Graphs:
    """Of one thread and one stream. Without CUDA, or with `plain`, it is not `on`: its owner runs what it would run anyway.

    A capture takes one run of the function and its recording; all share one pool of memory, which stays smallest where the largest is
    captured first. Other threads may use the device meanwhile. The device becomes that of the thread: events and kernels of Triton are of
    the thread's, wherever their tensors are.
    """

    def __init__(self, device: torch.device, *, plain: bool = False) -> None:
        self.on = device.type == "cuda" and not plain
        self._device = device
        if device.index is not None and device.type == "cuda":
            torch.cuda.set_device(device)
        self._captured: dict[Hashable, _Captured] = {}
        self._pool = torch.cuda.graph_pool_handle() if self.on else None
        # what a first run leaves cached belongs to its stream: one for all captures uses it again
        self._stream = torch.cuda.Stream(device) if self.on else None  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        return len(self._captured)

    def __call__(self, key: Hashable, function: Callable[..., T], inputs: tuple[Tensor, ...], blank: Callable[[], tuple[Tensor, ...]]) -> T:
        """`function(*inputs)`, which is to be the same function of the same shapes for one key. Inputs may lie in pinned memory of the
        host, which is read when the device comes to it. The tensors in what it returns are overwritten by the next call with any key: a
        graph's scratch may lie where one that was captured later has its outcome.

        `blank`: inputs of these shapes with which the function may run any number of times, since nobody reads what it changes then.
        """
        self.prepare(key, function, blank)
        captured = self._captured[key]
        for held, given in zip(captured.inputs, inputs, strict=True):
            held.copy_(given, non_blocking=True)
        captured.graph.replay()
        output: T = captured.output
        return output

    def prepare(self, key: Hashable, function: Callable[..., object], blank: Callable[[], tuple[Tensor, ...]]) -> None:
        """Captures what will be called with this key, unless that was done."""
        if key not in self._captured:
            self._captured[key] = self._capture(function, blank())

    @torch.no_grad()
    def _capture(self, function: Callable[..., Any], blank: tuple[Tensor, ...]) -> _Captured:
        stream = self._stream
        assert stream is not None
        with torch.inference_mode(False):
            held = tuple(each.clone() for each in blank)
            stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(stream):
                # libraries choose their kernels and take their workspaces in a first run, which cannot be recorded
                function(*held)
                stream.synchronize()
                if torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device) > SPARE_BYTES:
                    # what the first run left is of no use to the graphs, whose memory is their own
                    torch.cuda.empty_cache()
                graph = torch.cuda.CUDAGraph()
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    output = function(*held)
                finally:
                    graph.capture_end()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        return _Captured(graph, held, output)
