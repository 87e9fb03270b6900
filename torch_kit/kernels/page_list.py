"""The pages of a row, as kernels read them one by one."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def listed(pages, starts, stops, orders, at, mask):
    """Number, first valid offset, offset after the last, and order of the first, of the entry `at`."""
    number = tl.load(pages + at, mask=mask, other=0)
    start, stop = tl.load(starts + at, mask=mask, other=0), tl.load(stops + at, mask=mask, other=0)
    return number, start, stop, tl.load(orders + at, mask=mask, other=0)
