"""The draws of `torch_kit.draws` inside Triton kernels: the same words of Philox4x32-10, the same exponentials but for rounding.

A kernel asks for scalars `seed`, `unit`, `step` (int64) of a row and `draw` (0 to 63), as `torch_kit.draws.exponentials` does. Words are
the same bits. An exponential is reckoned in fp32, relative error below 3e-7 (measured), where the plain one rounds from fp64: a race is
decided otherwise only if two candidates are that close.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def philox(c0, c1, c2, c3, k0, k1):
    """Philox4x32-10. All uint32, of shapes that broadcast; so are the four words."""
    for _ in tl.static_range(10):
        product0 = c0.to(tl.uint64) * 0xD2511F53
        product1 = c2.to(tl.uint64) * 0xCD9E8D57
        c0, c2 = (product1 >> 32).to(tl.uint32) ^ c1 ^ k0, (product0 >> 32).to(tl.uint32) ^ c3 ^ k1
        c1, c3 = product1.to(tl.uint32), product0.to(tl.uint32)
        k0, k1 = (k0.to(tl.uint64) + 0x9E3779B9).to(tl.uint32), (k1.to(tl.uint64) + 0xBB67AE85).to(tl.uint32)
    return c0, c1, c2, c3


@triton.jit
def words(seed, unit, step, draw, blocks):
    """Four words, uint32 [N] each, of columns 4 x blocks + 0 to 3. `blocks` int32 [N]; the rest int64, of shapes that broadcast."""
    c0 = (blocks.to(tl.uint32) | (draw << 26)).to(tl.uint32)
    zero = c0 & 0
    c1 = zero | step.to(tl.uint32)
    c2 = zero | unit.to(tl.uint32)
    c3 = zero | (unit >> 32).to(tl.uint32)
    return philox(c0, c1, c2, c3, seed.to(tl.uint32), (seed >> 32).to(tl.uint32))


@triton.jit
def variate(word):
    """fp32: -log((word + 1/2) / 2^32) of uint32 words. Above 1/2 from what is missing to 1, which fp32 would round off."""
    low = word < 0x80000000
    part = (tl.where(low, word, ~word).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    rest = tl.where(low, part, 1.0 - part)
    # log(1 - x) = log(y) x / (1 - y) with y = 1 - x rounded: the error of the rounding drops out
    gap = 1.0 - rest
    ratio = tl.where(low, 1.0, part / tl.where(gap > 0, gap, 1.0))
    return tl.where(gap > 0, -tl.log(rest) * ratio, part)


@triton.jit
def exponentials(seed, unit, step, draw, blocks, COLUMNS: tl.constexpr):
    """fp32 [COLUMNS] of the columns 4 x blocks[0] and so on. `blocks` int32 [COLUMNS / 4]: consecutive."""
    w0, w1, w2, w3 = words(seed, unit, step, draw, blocks)
    lanes = tl.join(tl.join(w0, w2), tl.join(w1, w3))
    return variate(tl.reshape(lanes, (COLUMNS,)))


@triton.jit
def exponentials_at(seed, unit, step, draw, columns):
    """fp32, of any `columns` int32."""
    w0, w1, w2, w3 = words(seed, unit, step, draw, columns >> 2)
    lane = columns & 3
    return variate(tl.where(lane < 2, tl.where(lane == 0, w0, w1), tl.where(lane == 2, w2, w3)))
