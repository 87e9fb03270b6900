"""Graphs on a CPU: what they would replay is run instead, after a run with the blank inputs that a capture takes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from torch_kit.graphs import Graphs, T


class RehearsedGraphs(Graphs):
    """On, and without a device that has graphs. `keys`: in the order of the calls; `prepared`: keys and what their inputs look like."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.on = True
        self.keys: list[Any] = []
        self.prepared: dict[Hashable, list[tuple[torch.Size, torch.dtype]]] = {}

    def __call__(self, key: Hashable, function: Callable[..., T], inputs: tuple[Tensor, ...], blank: Callable[[], tuple[Tensor, ...]]) -> T:
        self.prepare(key, function, blank)
        assert self.prepared[key] == _looks(inputs)
        function(*blank())
        self.keys.append(key)
        return function(*inputs)

    def prepare(self, key: Hashable, function: Callable[..., object], blank: Callable[[], tuple[Tensor, ...]]) -> None:
        if key not in self.prepared:
            self.prepared[key] = _looks(blank())
            function(*blank())


def _looks(inputs: tuple[Tensor, ...]) -> list[tuple[torch.Size, torch.dtype]]:
    return [(each.shape, each.dtype) for each in inputs]
