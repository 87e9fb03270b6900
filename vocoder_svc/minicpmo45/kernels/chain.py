"""Kernels that start up while the one before them ends: programmatic dependent launch, of Hopper on."""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_chained: ContextVar[bool] = ContextVar("chained", default=False)


@triton.jit
def follow(CHAINED: tl.constexpr):
    """What a chained kernel does before it touches memory: the one before has ended and all it wrote is seen; the next may start up."""
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()


@contextmanager
def chained(on: bool) -> Iterator[None]:
    """Kernels launched within follow each other so."""
    token = _chained.set(on)
    try:
        yield
    finally:
        _chained.reset(token)


def chain() -> dict[str, bool]:
    """What every launch adds."""
    return {"CHAINED": True, "launch_pdl": True} if _chained.get() else {"CHAINED": False}
