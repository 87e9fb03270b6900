"""Graphs on a CPU: what they would replay is run instead, after a run with the blank inputs that a capture takes. What a replay answered is
spoiled by the next one, as it may be on a device, where graphs share their memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch
from torch import Tensor

from torch_kit.graphs import Graphs, T


class RehearsedGraphs(Graphs):
    """On, and without a device that has graphs. `keys`: in the order of the calls; `prepared`: keys and what their inputs look like.

    As a graph does, a call runs the function that its key was first met with, over inputs that lie where they lay then.
    """

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.on = True
        self.keys: list[Any] = []
        self.prepared: dict[Hashable, list[tuple[torch.Size, torch.dtype]]] = {}
        self._recorded: dict[Hashable, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {}
        self._lent: list[Tensor] = []

    def __call__(self, key: Hashable, function: Callable[..., T], inputs: tuple[Tensor, ...], blank: Callable[[], tuple[Tensor, ...]]) -> T:
        self.prepare(key, function, blank)
        assert self.prepared[key] == _looks(inputs)
        recorded, held = self._recorded[key]
        recorded(*blank())
        self.keys.append(key)
        with torch.inference_mode():
            for each in self._lent:
                each.fill_(torch.nan if each.is_floating_point() else torch.iinfo(each.dtype).min if each.dtype != torch.bool else True)
            for place, given in zip(held, inputs, strict=True):
                place.copy_(given)
        answer: T = recorded(*held)
        self._lent = list(_tensors(answer))
        return answer

    def prepare(self, key: Hashable, function: Callable[..., object], blank: Callable[[], tuple[Tensor, ...]]) -> None:
        if key not in self.prepared:
            inputs = blank()
            self.prepared[key] = _looks(inputs)
            with torch.inference_mode(False):
                self._recorded[key] = function, tuple(torch.zeros_like(each) for each in inputs)
            function(*inputs)


def _tensors(answer: Any) -> Iterator[Tensor]:
    if isinstance(answer, Tensor):
        yield answer
    elif isinstance(answer, tuple):
        for each in answer:
            yield from _tensors(each)


def _looks(inputs: tuple[Tensor, ...]) -> list[tuple[torch.Size, torch.dtype]]:
    return [(each.shape, each.dtype) for each in inputs]
