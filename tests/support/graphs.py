"""Graphs on a CPU: what they would replay is run instead, after a run with the blank inputs that a capture takes."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from torch_kit.graphs import Graphs


class RehearsedGraphs(Graphs):
    """On, and without a device that has graphs. `keys`: in the order of the calls."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.on = True
        self.keys: list[Hashable] = []

    def __call__(
        self, key: Hashable, function: Callable[..., Tensor], inputs: tuple[Tensor, ...], blank: Callable[[], tuple[Tensor, ...]]
    ) -> Tensor:
        given = blank()
        assert [(each.shape, each.dtype) for each in given] == [(each.shape, each.dtype) for each in inputs]
        function(*given)
        self.keys.append(key)
        return function(*inputs)
