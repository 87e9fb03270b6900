"""The SigLIP encoder: patches of many images of unequal size in one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from minicpmo45.config import VisionConfig
from thinker_svc.minicpmo45.encoder_block import BlockNames, Dense, EncoderBlock, Norm, tensor
from thinker_svc.minicpmo45.frames import Slice
from thinker_svc.minicpmo45.upload import staging

_SIZES = 8
"""Bytes of an image's rows and columns."""
_NAMES = BlockNames("layer_norm1", "layer_norm2", "mlp.fc1", "mlp.fc2")


class PatchBatch(NamedTuple):
    """Images side by side. patches: uint8 [images, longest, 3 x patch x patch], padded behind; sizes: int64 [images, 2], rows and
    columns; full: no image is padded."""

    patches: Tensor
    sizes: Tensor
    full: bool

    @classmethod
    def of(cls, slices: Sequence[Slice], device: torch.device) -> PatchBatch:
        longest = max(len(each.patches) for each in slices)
        return cls.over(packed(slices, longest, device), len(slices), longest, full=all(len(each.patches) == longest for each in slices))

    @classmethod
    def over(cls, upload: Tensor, images: int, longest: int, *, full: bool) -> PatchBatch:
        """What `packed` made, on the device."""
        sizes, patches = upload[: images * _SIZES], upload[images * _SIZES :]
        return cls(patches.view(images, longest, -1), sizes.view(torch.int32).view(images, 2).long(), full)

    @property
    def real(self) -> Tensor:
        """bool [images, longest]: False is padding."""
        return torch.arange(self.patches.shape[1], device=self.sizes.device) < self.sizes.prod(1, keepdim=True)

    @property
    def seen(self) -> Tensor | None:
        """What attention may see, bool [images, 1, 1, longest]; None: everything, for which there are faster kernels."""
        return None if self.full else self.real[:, None, None]

    def places(self) -> tuple[Tensor, Tensor]:
        """Row and column of every patch, int64 [images, longest]; 0 for padding."""
        index = torch.arange(self.patches.shape[1], device=self.sizes.device)
        columns = self.sizes[:, 1:]
        if self.full:
            return index // columns, index % columns
        return torch.where(self.real, index // columns, 0), torch.where(self.real, index % columns, 0)


def packed(slices: Sequence[Slice], longest: int, device: torch.device) -> Tensor:
    """Sizes (int32) and patches of images of at most `longest` patches in one upload: uint8, of one dimension, on the device."""
    images, width = len(slices), slices[0].patches.shape[1]
    staged = staging((images * (_SIZES + longest * width),), torch.uint8, device)
    batch = staged[images * _SIZES :].view(images, longest, width).numpy()
    staged[: images * _SIZES].view(torch.int32).numpy()[:] = [side for each in slices for side in (each.rows, each.columns)]
    for row, each in zip(batch, slices, strict=True):
        row[: len(each.patches)] = each.patches
        row[len(each.patches) :] = 0
    return staged.to(device, non_blocking=True)


def position_buckets(longest: int, grid: int) -> Tensor:
    """Which of `grid` equal parts of a side each of n patches begins in: int64 [longest + 1, longest], row n for a side of n.

    Fractions i / n and bounds k / grid are made as the reference makes them, in fp32 by `arange`: where the two meet, rounding decides.
    """
    bounds = torch.arange(1 / grid, 1.0, 1 / grid)
    table = torch.zeros(longest + 1, longest, dtype=torch.int64)
    for side in range(1, longest + 1):
        fractions = torch.arange(0, 1 - 1e-6, float(1 / torch.tensor(side)))
        table[side, :side] = torch.bucketize(fractions, bounds, right=True)
    return table


class VisionEncoder:
    """Patches to states: a linear embedding, learned positions, pre-norm blocks with GELU (tanh), a final norm. Weights: `vpm.*`."""

    def __init__(self, weights: Mapping[str, Tensor], config: VisionConfig, longest: int) -> None:
        embedding = Dense.load(weights, "vpm.embeddings.patch_embedding")
        self._embedding = Dense(embedding.weight.flatten(1), embedding.bias)
        self._positions = tensor(weights, "vpm.embeddings.position_embedding.weight")
        self._buckets = position_buckets(longest, config.grid).to(self._positions.device)
        self._grid = config.grid
        self._blocks = [
            EncoderBlock(weights, f"vpm.encoder.layers.{layer}", _NAMES, config.heads, config.layer_norm_eps, "tanh")
            for layer in range(config.layers)
        ]
        self._norm = Norm.load(weights, "vpm.post_layernorm", config.layer_norm_eps)

    def __call__(self, batch: PatchBatch) -> Tensor:
        """[images, longest, hidden_size] in the dtype of the weights; what stands at padding is finite and means nothing.

        Pixels are scaled to -1 to 1 first (mean and deviation 0.5).
        """
        # 2 p - 255 is exact in every dtype, so that it is rounded once
        pixels = batch.patches.to(self._positions.dtype).mul_(2).sub_(255).div_(255)
        row, column = batch.places()
        along = self._buckets[batch.sizes].gather(2, torch.stack((row, column), 1))
        x = self._embedding(pixels) + self._positions[along[:, 0] * self._grid + along[:, 1]]
        return self._attended(x, batch.seen)

    def _attended(self, x: Tensor, seen: Tensor | None) -> Tensor:
        """All blocks and the final norm: [images, longest, hidden_size]."""
        for block in self._blocks:
            x = block.finish(x, F.scaled_dot_product_attention(*block.project(x), attn_mask=seen))
        return self._norm(x)
