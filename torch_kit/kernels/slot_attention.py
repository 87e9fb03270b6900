"""Attention of new frames over what their slots hold and over each other; their keys and values go into the slots on the way."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from torch_kit.kernels.parts import combine

_LEAST = 16
"""Tensor cores take no smaller tiles."""
_SPLITS = ((16, 8), (64, 4), (128, 2))
"""Rows times heads up to so many: into how many parts."""
_LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class Launch:
    """How the kernel is run. It never changes what comes out, but for rounding."""

    splits: int
    """Into so many parts the keys of a row are divided; 1: no combining."""
    keys: int = 64
    """Met at once, a power of two from 16 on."""
    warps: int = 4
    stages: int = 3


def launch(pairs: int) -> Launch:
    """By rows times heads alone."""
    return Launch(next((splits for most, splits in _SPLITS if pairs <= most), 1))


@triton.jit
def _meet(top, total, mixed, asks, keys, values, seen, scale, PRECISION: tl.constexpr):
    """Softmax over one more block of keys, of which at least one is seen (Milakov and Gimelshein's online form, base 2)."""
    scores = tl.dot(asks, tl.trans(keys), input_precision=PRECISION) * scale
    scores = tl.where(seen[None, :], scores, float("-inf"))
    peak = tl.maximum(top, tl.max(scores, 1))
    shares = tl.exp2(scores - peak[:, None])
    shrink = tl.exp2(top - peak)
    mixed = mixed * shrink[:, None] + tl.dot(shares.to(values.dtype), values, input_precision=PRECISION)
    return peak, total * shrink + tl.sum(shares, 1), mixed


@triton.jit(do_not_specialize=["tokens"], do_not_specialize_on_alignment=["slots", "cached"])
def _attend(
    joined, cache, slots, cached, out, partials, logs, tokens, scale,
    FRAMES: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr, POSITIONS: tl.constexpr,
    LINES: tl.constexpr, KEYS: tl.constexpr, DIRECT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row, head, split = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS, tl.program_id(1)
    splits = tl.num_programs(1)
    known = tl.load(cached + row).to(tl.int32)
    frame = tl.arange(0, LINES)
    column = tl.arange(0, HEAD)[None, :]
    used = frame < FRAMES
    token = row.to(tl.int64) * FRAMES + frame
    own = joined + (token * 3 * HEADS + head)[:, None] * HEAD + column
    asks = tl.load(own, mask=used[:, None], other=0.0)
    held = cache + (tl.load(slots + row).to(tl.int64) * 2 * HEADS + head) * POSITIONS * HEAD + column
    top = tl.full((LINES,), float("-inf"), tl.float32)
    total = tl.zeros((LINES,), tl.float32)
    mixed = tl.zeros((LINES, HEAD), tl.float32)
    part = tl.cdiv(tl.cdiv(known, KEYS), splits) * KEYS
    for at in range(split * part, tl.minimum(split * part + part, known), KEYS):
        position = at + tl.arange(0, KEYS)
        seen = position < known
        # what lies behind is never read, for it may be NaN
        keys = tl.load(held + position[:, None] * HEAD, mask=seen[:, None], other=0.0)
        values = tl.load(held + (HEADS * POSITIONS + position)[:, None] * HEAD, mask=seen[:, None], other=0.0)
        top, total, mixed = _meet(top, total, mixed, asks, keys, values, seen, scale, PRECISION)
    # the last part has the fewest keys of the cache
    if split == splits - 1:
        keys = tl.load(own + HEADS * HEAD, mask=used[:, None], other=0.0)
        values = tl.load(own + 2 * HEADS * HEAD, mask=used[:, None], other=0.0)
        # nobody reads these places in this launch
        tl.store(held + (known + frame)[:, None] * HEAD, keys, mask=used[:, None])
        tl.store(held + (HEADS * POSITIONS + known + frame)[:, None] * HEAD, values, mask=used[:, None])
        top, total, mixed = _meet(top, total, mixed, asks, keys, values, used, scale, PRECISION)
    mixed = mixed / tl.where(total != 0, total, 1.0)[:, None]
    line = token * HEADS + head
    if DIRECT:
        tl.store(out + line[:, None] * HEAD + column, mixed.to(out.dtype.element_ty), mask=used[:, None])
    else:
        line += split.to(tl.int64) * tokens * HEADS
        # a peak of nothing is the log of nothing, and what is not finite goes on as NaN
        tl.store(logs + line, top + tl.log2(tl.where(total != 0, total, 1.0)), mask=used)
        tl.store(partials + line[:, None] * HEAD + column, mixed, mask=(used & (total != 0))[:, None])


class SlotAttention:
    """Of `rows` rows of `frames` new frames: how it is launched, and the fp32 partial results where keys are split."""

    def __init__(self, rows: int, frames: int, heads: int, head_dim: int, device: torch.device, how: Launch | None = None) -> None:
        """`how`: instead of what `launch` chooses. Raises ValueError: a size of heads that tensor cores do not take."""
        if head_dim < _LEAST or head_dim & (head_dim - 1):
            raise ValueError(f"head_dim: {head_dim} is no power of two from {_LEAST} on")
        self.how = how or launch(rows * heads)
        self._frames = frames
        parts = self.how.splits if self.how.splits > 1 else 0
        self._partials = torch.empty((parts, rows * frames, heads, head_dim), device=device)
        self._logs = torch.empty((parts, rows * frames, heads), device=device)

    def __call__(self, joined: Tensor, cache: Tensor, slots: Tensor, cached: Tensor, precision: str = "ieee") -> Tensor:
        """What the frames attend to: [rows * frames, heads * head_dim] in the dtype of `joined`.

        joined [rows * frames, 3 * heads * head_dim]: queries, keys, values; cache [slots, 2, heads, positions, head_dim] of one layer, of
        the same dtype; slots, cached int64 [rows]: where each row's history lies, and how many of its positions count; contiguous. Frames
        see each other and those positions; their keys and values go behind them, where there must be room. Softmax over score /
        sqrt(head_dim) in fp32. Rows of one slot must hold nothing in it: what then lies there is anybody's. `precision`: of fp32 products,
        "ieee" or "tf32".
        """
        heads, positions, head_dim = cache.shape[2:]
        tokens, splits = joined.shape[0], self.how.splits
        out = torch.empty((tokens, heads * head_dim), dtype=joined.dtype, device=joined.device)
        lines = max(triton.next_power_of_2(self._frames), _LEAST)
        _attend[(len(slots) * heads, splits)](
            joined, cache, slots, cached, out, self._partials, self._logs, tokens, head_dim**-0.5 * _LOG2_E,
            self._frames, heads, head_dim, positions, lines, self.how.keys, splits == 1, precision,
            num_warps=self.how.warps, num_stages=self.how.stages,
        )  # fmt: skip
        if splits > 1:
            combine(self._partials, self._logs, out)
        return out
