"""Triton's interpreter as tests have it: faster, and as strict as it was."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

import triton
import triton.language as tl
from triton import knobs
from triton.runtime.errors import InterpreterError

from tests.support.interpreter import mend_interpreter

mend_interpreter()
pytestmark = pytest.mark.skipif(not knobs.runtime.interpret, reason="kernels are compiled here")
MOST = 2**31 - 1


@triton.jit
def _added(x, y, out, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.arange(0, SIZE)
    tl.store(out + i, tl.load(x + i) + tl.load(y + i))


@triton.jit
def _outer(x, y, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    i, j = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    row, column = tl.load(x + i)[:, None], tl.load(y + j)
    tl.store(out + i[:, None] * COLUMNS + j, tl.where(row > column, row * column, 2 * row - 1), (i < ROWS - 1)[:, None] & (j > 0)[None])


@triton.jit
def _unequal(x, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(x + tl.arange(0, SIZE), tl.arange(0, SIZE) + tl.arange(0, 2 * SIZE))


@triton.jit
def _more(x, BY: tl.constexpr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.arange(0, SIZE)
    tl.store(x + i, tl.load(x + i) + BY)


@triton.jit
def _zeros(x, out):  # type: ignore[no-untyped-def]
    value = tl.load(x)
    for at in range(2):
        tl.store(out + 2 * at, value * 0.0)
        tl.store(out + 2 * at + 1, value * -0.0)


@triton.jit
def _beside(x, out, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    place = x + tl.arange(0, SIZE)
    tl.store(out + tl.arange(0, SIZE), tl.load(place + tl.load(out)))


def _ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize(("x", "y"), [(MOST, 1), (-MOST, -2)])
def test_a_sum_that_does_not_fit_is_refused(x: int, y: int) -> None:
    out = _ints(0, 0)
    _added[(1,)](_ints(MOST, -MOST), _ints(0, -1), out, SIZE=2)
    assert out.tolist() == [MOST, -MOST - 1]
    with pytest.raises(InterpreterError, match="overflow of int32"):
        _added[(1,)](_ints(0, x), _ints(0, y), out, SIZE=2)


def test_rows_columns_and_scalars_meet() -> None:
    x, y = torch.arange(8.0), torch.arange(4.0) + 2
    out = torch.full((8, 4), -7.0)
    _outer[(1,)](x, y, out, ROWS=8, COLUMNS=4)
    expected = torch.where(x[:, None] > y, x[:, None] * y, 2 * x[:, None] - 1)
    expected[-1], expected[:, 0] = -7, -7
    assert torch.equal(out, expected)


def test_shapes_that_do_not_meet_are_refused() -> None:
    with pytest.raises(InterpreterError, match="broadcast"):
        _unequal[(1,)](_ints(*range(8)), SIZE=4)


def test_numbers_that_a_type_does_not_hold_are_refused_however_often() -> None:
    x = torch.tensor([1, 2], dtype=torch.uint8)
    _more[(1,)](x, BY=250, SIZE=2)
    assert x.tolist() == [251, 252]
    for by, why in ((256, "out of range"), (-1, "negative scalar"), (256, "out of range"), (5, "overflow of uint8")):
        with pytest.raises(InterpreterError, match=why):
            _more[(1,)](x, BY=by, SIZE=2)
    assert x.tolist() == [251, 252]


def test_the_two_zeros_are_two_numbers() -> None:
    out = torch.ones(4)
    _zeros[(1,)](torch.tensor([3.0]), out)
    assert out.tolist() == [0.0] * 4 and out.signbit().tolist() == [False, True] * 2


def test_a_place_and_a_fraction_make_no_place() -> None:
    for _ in range(2):
        with pytest.raises(InterpreterError, match="IncompatibleTypeErrorImpl"):
            _beside[(1,)](torch.arange(4.0), torch.zeros(4), SIZE=2)
    out = torch.tensor([1, 0], dtype=torch.int32)
    _beside[(1,)](torch.arange(4, dtype=torch.int32), out, SIZE=2)
    assert out.tolist() == [1, 2]
