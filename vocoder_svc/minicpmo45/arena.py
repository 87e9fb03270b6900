"""Keys and values of all voices and sessions in three tensors, frame by frame: rows name frames, nothing is joined or moved."""

from __future__ import annotations

import torch
from torch import Tensor

from minicpmo45.config import FlowConfig

SCRATCH = 2
"""Frames at the front that no row reads: what short rows have beyond their length is written there."""


class Arena:
    """`dit` [steps, depth, K/V, guided or not, heads, frames, dim], `mel` [up blocks, K/V, heads, frames, dim], `token` likewise with
    frames / 2.

    Frame 2n and token n of a row lie at the same place, so one pointer serves all three. Memory is not cleared: readers mask by position.
    """

    def __init__(self, config: FlowConfig, steps: int, frames: int, dtype: torch.dtype, device: torch.device | str) -> None:
        def room(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        self.frames = SCRATCH + frames + frames % 2
        dim = config.hidden_size // config.heads
        self.dit = room(steps, config.dit_depth, 2, 2, config.dit_heads, self.frames, config.dit_head_dim)
        self.mel = room(config.up_blocks, 2, config.heads, self.frames, dim)
        self.token = room(config.blocks, 2, config.heads, self.frames // 2, dim)

    @property
    def nbytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in (self.dit, self.mel, self.token))


def frame_bytes(config: FlowConfig, steps: int, element: int) -> int:
    """Bytes of one mel frame: DiT 2 x 2 x heads x dim a step and block, conformer 2 x width a block (half at the token rate)."""
    dit = steps * config.dit_depth * 4 * config.dit_heads * config.dit_head_dim
    return element * (dit + 2 * config.hidden_size * config.up_blocks + config.hidden_size * config.blocks)


class Ranges:
    """First fit over frames [start, start + size): even starts, so that tokens fit, too."""

    def __init__(self, start: int, size: int) -> None:
        self._free = [(start, size - size % 2)]

    @property
    def free(self) -> int:
        return sum(size for _, size in self._free)

    def take(self, size: int) -> int | None:
        """Start of a free range of `size` frames; None when there is none."""
        size += size % 2
        for index, (start, free) in enumerate(self._free):
            if free >= size:
                self._free[index : index + 1] = [(start + size, free - size)] if free > size else []
                return start
        return None

    def give(self, start: int, size: int) -> None:
        """The range is free again and joins its neighbours."""
        joined: list[tuple[int, int]] = []
        for begin, length in sorted([*self._free, (start, size + size % 2)]):
            if joined and sum(joined[-1]) == begin:
                joined[-1] = (joined[-1][0], joined[-1][1] + length)
            else:
                joined.append((begin, length))
        self._free = joined
