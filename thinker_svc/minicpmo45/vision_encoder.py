"""The SigLIP encoder: patches of many images of unequal size in one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from minicpmo45.config import VisionConfig
from thinker_svc.minicpmo45.encoder_block import BlockNames, Dense, EncoderBlock, Norm, tensor
from thinker_svc.minicpmo45.frames import Slice

_NAMES = BlockNames("layer_norm1", "layer_norm2", "mlp.fc1", "mlp.fc2")


class PatchBatch(NamedTuple):
    """Images side by side. patches: uint8 [images, longest, 3 x patch x patch], padded behind; sizes: int64 [images, 2], rows and
    columns."""

    patches: Tensor
    sizes: Tensor

    @classmethod
    def of(cls, slices: Sequence[Slice], device: torch.device) -> PatchBatch:
        longest = max(len(each.patches) for each in slices)
        patches = np.zeros((len(slices), longest, slices[0].patches.shape[1]), np.uint8)
        for row, each in zip(patches, slices, strict=True):
            row[: len(each.patches)] = each.patches
        sizes = torch.tensor([(each.rows, each.columns) for each in slices])
        return cls(torch.from_numpy(patches).to(device), sizes.to(device))

    @property
    def real(self) -> Tensor:
        """bool [images, longest]: False is padding."""
        return torch.arange(self.patches.shape[1], device=self.sizes.device) < self.sizes.prod(1, keepdim=True)

    def places(self) -> tuple[Tensor, Tensor]:
        """Row and column of every patch, int64 [images, longest]; 0 for padding."""
        index = torch.arange(self.patches.shape[1], device=self.sizes.device)
        columns = self.sizes[:, 1:]
        return torch.where(self.real, index // columns, 0), torch.where(self.real, index % columns, 0)


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
        gelu = partial(F.gelu, approximate="tanh")
        self._blocks = [
            EncoderBlock(weights, f"vpm.encoder.layers.{layer}", _NAMES, config.heads, config.layer_norm_eps, gelu)
            for layer in range(config.layers)
        ]
        self._norm = Norm.load(weights, "vpm.post_layernorm", config.layer_norm_eps)

    def __call__(self, batch: PatchBatch) -> Tensor:
        """[images, longest, hidden_size] in the dtype of the weights; what stands at padding is finite and means nothing.

        Pixels are scaled to -1 to 1 first (mean and deviation 0.5).
        """
        real = batch.real
        pixels = torch.where(real[:, :, None], batch.patches, 0).float() / 127.5 - 1.0
        row, column = batch.places()
        along = self._buckets[batch.sizes].gather(2, torch.stack((row, column), 1))
        x = self._embedding(pixels.to(self._positions.dtype)) + self._positions[along[:, 0] * self._grid + along[:, 1]]
        seen = real[:, None, None]
        for block in self._blocks:
            x = block.finish(x, F.scaled_dot_product_attention(*block.project(x), attn_mask=seen))
        return self._norm(x)
