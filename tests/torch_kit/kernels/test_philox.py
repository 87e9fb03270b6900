"""Draws inside kernels against the plain ones: equal words, exponentials equal but for rounding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

import triton
import triton.language as tl

from tests.support.interpreter import mend_interpreter
from torch_kit import draws
from torch_kit.kernels.philox import exponentials, exponentials_at, variate, words

mend_interpreter()
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
KEYS = torch.tensor([[5, 1, 0], [2**62 + 9, 1, 3], [5, 2**40 + 2**31, 2**31], [2**63 - 1, 2**63 - 1, 2**32 - 1]], device=DEVICE)


@triton.jit
def _words_kernel(keys, out, DRAW: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    blocks = tl.arange(0, BLOCK)
    w0, w1, w2, w3 = words(tl.load(keys + row * 3), tl.load(keys + row * 3 + 1), tl.load(keys + row * 3 + 2), DRAW, blocks)
    place = out + (row * BLOCK + blocks) * 4
    tl.store(place, w0.to(tl.int64))
    tl.store(place + 1, w1.to(tl.int64))
    tl.store(place + 2, w2.to(tl.int64))
    tl.store(place + 3, w3.to(tl.int64))


@triton.jit
def _exponentials_kernel(keys, columns, whole, some, DRAW: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    seed, unit, step = tl.load(keys + row * 3), tl.load(keys + row * 3 + 1), tl.load(keys + row * 3 + 2)
    column = tl.arange(0, BLOCK)
    tl.store(whole + row * BLOCK + column, exponentials(seed, unit, step, DRAW, tl.arange(0, BLOCK // 4), BLOCK))
    tl.store(some + row * BLOCK + column, exponentials_at(seed, unit, step, DRAW, tl.load(columns + column)))


@triton.jit
def _variate_kernel(given, out, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.arange(0, BLOCK)
    tl.store(out + place, variate(tl.load(given + place).to(tl.uint32)))


def test_words_are_those_of_the_plain_draws() -> None:
    out = torch.zeros(len(KEYS), 16, 4, dtype=torch.int64, device=DEVICE)
    _words_kernel[(len(KEYS),)](KEYS, out, 63, 16)
    seed, unit, step = KEYS.T[..., None]
    mask = 2**32 - 1
    blocks = torch.arange(16, device=DEVICE)[None]
    expected = draws.philox((blocks | (63 << 26), step & mask, unit & mask, unit >> 32), (seed & mask, seed >> 32))
    assert torch.equal(out, torch.stack(expected, -1))


@pytest.mark.parametrize("draw", [0, 1])
def test_exponentials_are_those_of_the_plain_draws(draw: int) -> None:
    columns = torch.randint(0, 151_748, (64,), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    whole, some = torch.zeros(2, len(KEYS), 64, device=DEVICE)
    _exponentials_kernel[(len(KEYS),)](KEYS, columns.int(), whole, some, draw, 64)
    for found, wanted in ((whole, 64), (some, columns)):
        expected = draws.exponentials(*KEYS.T, draw, wanted)
        assert (found / expected - 1).abs().max() < 3e-7


def test_variates_are_right_to_the_ends_of_their_range() -> None:
    ends: Tensor = torch.cat((torch.arange(1024), 2**31 + torch.arange(-512, 512), 2**32 - 1 - torch.arange(1024)))
    bits = 2 ** torch.arange(32)
    words = torch.cat((ends, bits, bits - 1, 2**32 - bits, torch.randint(0, 2**32, (896,), generator=torch.Generator().manual_seed(2))))
    given, out = words.to(DEVICE), torch.zeros(4096, device=DEVICE)
    given = torch.cat((given, given.new_zeros(4096 - len(given))))
    _variate_kernel[(1,)](given, out, 4096)
    expected = -torch.log((given.double() + 0.5) * 2.0**-32)
    assert (out.double() / expected - 1).abs().max() < 3e-7
