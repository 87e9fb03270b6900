"""Where the outcome of every graph of the vocoder is put, whatever its size: each would else hold memory for an outcome of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from vocoder_svc.minicpmo45.conformer import ConformerContext
from vocoder_svc.minicpmo45.continuation import SoundContext
from vocoder_svc.minicpmo45.flow import FlowContext

Made = tuple[Tensor, Tensor, FlowContext, SoundContext]
"""Samples fp32 [B, W * hop], bool [B]: which rows are finite, and the contexts to commit."""


class Room:
    """`contexts`: of so many rows. As large as the largest outcome yet, so the largest had better come first."""

    def __init__(self, contexts: Callable[[int], tuple[FlowContext, SoundContext]]) -> None:
        self._contexts = contexts
        self._held: Made | None = None

    def put(self, made: Made) -> Made:
        """What was made, where it stays until the next is put."""
        count = len(made[0])
        # graphs write here from outside of inference mode, too
        with torch.inference_mode(False):
            if self._held is None or count > len(self._held[0]):
                self._held = torch.empty_like(made[0]), torch.empty_like(made[1]), *self._contexts(count)
        places = _first(self._held, count)
        with torch.inference_mode():
            for place, value in zip(_tensors(places), _tensors(made), strict=True):
                place.copy_(value)
        return places


def _first(held: Made, count: int) -> Made:
    samples, fine, flow, sound = held
    return (
        samples[:count],
        fine[:count],
        FlowContext(ConformerContext(flow.conformer.lookahead[:count], flow.conformer.upsample[:count]), flow.dit[:, :, :count]),
        SoundContext(**{name: getattr(sound, name)[:count] for name in SoundContext.__struct_fields__}),
    )


def _tensors(made: Made) -> Iterator[Tensor]:
    samples, fine, flow, sound = made
    yield from (samples, fine, flow.conformer.lookahead, flow.conformer.upsample, flow.dit)
    yield from (getattr(sound, name) for name in SoundContext.__struct_fields__)
