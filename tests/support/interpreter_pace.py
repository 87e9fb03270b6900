"""Triton's interpreter, several times as fast: what it makes anew at every operation is made once; results and checks are the same."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

WIDE = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def hasten_interpreter() -> None:
    """Once a process, after every other change to the interpreter."""
    interpreter._get_np_dtype = _np_dtype(interpreter._get_np_dtype)
    interpreter._patch_lang = _patched_for_good(interpreter._patch_lang)
    tl.block_type.__init__ = _block_type(tl.block_type.__init__)
    tl.tensor.__init__ = _tensor
    TritonSemantic.binary_op_sanitize_overflow_impl = _no_overflow
    TritonSemantic.broadcast_impl_value = _broadcast


def _np_dtype(find: Any) -> Any:
    by_name: dict[str, np.dtype[Any]] = {}

    def found(kind: Any) -> np.dtype[Any]:
        known = by_name.get(kind.name)
        if known is None:
            known = by_name[kind.name] = find(kind)
        return known

    return found


class _Kept:
    """In place of what would restore the language after each launch: nothing in such a process compiles."""

    def restore(self) -> None:
        pass


def _patched_for_good(patch: Any) -> Any:
    @functools.cache
    def once() -> _Kept:
        patch(None)
        return _Kept()

    return lambda fn: once()


def _block_type(make: Any) -> Any:
    made: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = {}

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        key = (element_ty.name, tuple([each.value if isinstance(each, tl.constexpr) else each for each in shape]))
        known = made.get(key)
        if known is None:
            make(self, element_ty, shape)
            known = made[key] = self.__dict__
        # the attributes of a type never change
        self.__dict__ = known

    return init


SCALAR = (tl.tuple([]), tl.constexpr(1))


def _tensor(self: Any, handle: Any, type: Any) -> None:
    """What tl.tensor's own does."""
    self.handle, self.type, self.dtype = handle, type, type.scalar
    if not type.is_block():
        self.shape, self.numel = SCALAR
        return
    known = type.__dict__.get("of_tensor")
    if known is None:
        known = type.of_tensor = (tl.tuple([tl.constexpr(each) for each in type.shape]), tl.constexpr(math.prod(type.shape)))
    self.shape, self.numel = known


def _no_overflow(self: Any, lhs: Any, rhs: Any, binary_op: Any) -> None:
    """As the language's own: the exact result of an integer operation has to fit. Raises AssertionError."""
    kind = lhs.type.scalar
    if kind.int_bitwidth >= 64:
        return
    with np.errstate(all="ignore"):
        exact = WIDE[binary_op.__name__](lhs.handle.data, rhs.handle.data, dtype=np.int64)
    low, high = int(exact.min()), int(exact.max())
    assert kind.get_int_min_value() <= low and high <= kind.get_int_max_value(), f"overflow of {kind} in {binary_op.__name__}"


def _broadcast(self: Any, lhs: Any, rhs: Any) -> Any:
    """To one shape, as views. Raises ValueError where there is none."""
    shapes = [tuple(each.type.shape.values) if each.type.is_block() else () for each in (lhs, rhs)]
    if shapes[0] == shapes[1]:
        return lhs, rhs
    shape = _common(*shapes)
    return tuple([each if held == shape else _spread(each, shape) for each, held in zip((lhs, rhs), shapes, strict=True)])


_common = functools.cache(np.broadcast_shapes)


def _spread(value: Any, shape: tuple[int, ...]) -> Any:
    handle = value.handle
    data = handle.data if value.type.is_block() else handle.data.astype(interpreter._get_np_dtype(handle.dtype), copy=False)
    spread = interpreter.TensorHandle(np.broadcast_to(data, shape), handle.dtype.scalar)
    return tl.tensor(spread, tl.block_type(value.type.scalar, list(shape)))
