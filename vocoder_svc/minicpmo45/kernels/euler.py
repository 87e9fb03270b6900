"""One Euler step of the flow with classifier-free guidance."""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vocoder_svc.minicpmo45.kernels.chain import chain, follow

BLOCK = 1024


@triton.jit
def _euler(x, speed, out, count, size, by, strength, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    follow(CHAINED)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    guided = place + place // size * size
    forced = tl.load(speed + guided, inside, other=0.0).to(tl.float32)
    free = tl.load(speed + guided + size, inside, other=0.0).to(tl.float32)
    moved = tl.load(x + place, inside, other=0.0) + by * ((1 + strength) * forced - strength * free)
    tl.store(out + place, moved, inside)


def euler(x: Tensor, speed: Tensor, by: float, strength: float) -> Tensor:
    """x + by * ((1 + strength) * speed of the guided rows - strength * speed of the free ones): fp32 [B, M, mels] (arXiv 2207.12598, eq.
    6).

    x fp32 [B, M, mels], speed [B, 2, M, mels].
    """
    out = torch.empty_like(x)
    count, size = x.numel(), x[0].numel()
    _euler[(triton.cdiv(count, BLOCK),)](x, speed, out, count, size, by, strength, BLOCK=BLOCK, **chain())
    return out
