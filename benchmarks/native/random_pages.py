"""Normal keys and values in pages of any dtype."""

from __future__ import annotations

import torch

from torch_kit.fp8 import narrowed
from torch_kit.pages import PagePool

_AT_ONCE = 512
"""Pages: what is drawn is fp32 first."""


@torch.no_grad()
def draw(pool: PagePool, pages: list[int] | None = None) -> None:
    """Fills these pages of a pool, or all; of all layers."""
    numbers = torch.arange(pool.pages) if pages is None else torch.tensor(pages)
    for index in range(pool.layers):
        layer, scales = pool.layer(index), pool.scale(index)
        for part in numbers.to(pool.device).split(_AT_ONCE):
            vectors = torch.randn((len(part), *layer.shape[1:]), device=pool.device)
            if scales is not None:
                vectors, scales[part] = narrowed(vectors)
            layer[part] = vectors.to(pool.dtype)
