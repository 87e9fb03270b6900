"""Triton's interpreter, several times as fast: what it makes anew at every operation is made once; results and checks are the same."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import triton.language as tl
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

WIDE = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def hasten_interpreter() -> None:
    """Once a process, after every other change to the interpreter."""
    interpreter._get_np_dtype = _np_dtype(interpreter._get_np_dtype)
    interpreter._patch_lang = _patched_for_good(interpreter._patch_lang)
    interpreter._patch_attr = _bound
    interpreter.TensorHandle.__init__ = _handle
    interpreter.InterpreterBuilder.create_expand_dims = _expanded
    core._unwrap_if_constexpr = _unwrapped(core._unwrap_if_constexpr)
    _hasten_types()
    tl.tensor.__init__ = _tensor
    TritonSemantic.binary_op_sanitize_overflow_impl = _no_overflow
    TritonSemantic.broadcast_impl_value = _broadcast
    TritonSemantic.binary_op_type_checking_impl = _operands(TritonSemantic.binary_op_type_checking_impl)


def _hasten_types() -> None:
    integers, unsigned, floats = (
        frozenset(names) for names in (tl.dtype.SINT_TYPES + tl.dtype.UINT_TYPES, tl.dtype.UINT_TYPES, tl.dtype.FP_TYPES)
    )
    tl.dtype.is_int = lambda self: self.name in integers
    tl.dtype.is_int_unsigned = lambda self: self.name in unsigned
    tl.dtype.is_floating = lambda self: self.name in floats
    tl.dtype.__eq__ = _equal(tl.dtype.__eq__)
    tl.block_type.__init__ = _block_type(tl.block_type.__init__)
    tl.block_type.with_element_ty = _of_element


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


def _bound(where: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
    """A function of the language, told of the interpreter."""
    call, semantic = getattr(member, "__wrapped__", member), interpreter.interpreter_semantic

    def bound(*given: Any, **named: Any) -> Any:
        named["_semantic"] = semantic
        return call(*given, **named)

    scope.set_attr(where, name, bound)


def _unwrapped(unwrap: Any) -> Any:
    plain = frozenset((tl.tensor, int, float, bool, str, type(None), tl.dtype, tl.block_type, tl.pointer_type))

    def unwrapped(value: Any) -> Any:
        kind = value.__class__
        return value if kind in plain else value.value if kind is tl.constexpr else unwrap(value)

    return unwrapped


def _equal(compare: Any) -> Any:
    return lambda self, other: self is other or compare(self, other)


def _block_type(make: Any) -> Any:
    made: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = {}

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        key = (element_ty.name, tuple([each.value if isinstance(each, tl.constexpr) else each for each in shape]))
        known = made.get(key)
        if known is None:
            make(self, element_ty, list(key[1]))
            known = made[key] = {**self.__dict__, "sizes": key[1], "of_element": {}}
        # the attributes of a type never change
        self.__dict__ = known

    return init


def _of_element(self: Any, scalar: Any) -> Any:
    known = self.of_element.get(scalar.name)
    if known is None:
        known = self.of_element[scalar.name] = tl.block_type(scalar, self.sizes)
    return known


def _handle(self: Any, data: Any, dtype: Any, attr: Any = None) -> None:
    """What TensorHandle's own does, with its check of the size."""
    self.data, self.dtype, self.attr = data, dtype, {} if attr is None else attr
    if data.itemsize * 8 > _most_bits(dtype):
        self.__post_init__()


def _most_bits(dtype: Any) -> int:
    known: int | None = MOST_BITS.get(dtype.name)
    if known is None:
        known = MOST_BITS[dtype.name] = 64 if isinstance(dtype, tl.pointer_type) else max(8, dtype.primitive_bitwidth)
    return known


MOST_BITS: dict[str, int] = {}
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


def _expanded(self: Any, value: Any, axis: int) -> Any:
    return interpreter.TensorHandle(value.data[(slice(None),) * axis + (None,)], value.dtype.scalar)


def _no_overflow(self: Any, lhs: Any, rhs: Any, binary_op: Any) -> None:
    """As the language's own: the exact result of an integer operation has to fit. Raises AssertionError."""
    kind = lhs.type.scalar
    if kind.int_bitwidth >= 64:
        return
    exact = WIDE[binary_op.__name__](lhs.handle.data, rhs.handle.data, dtype=np.int64)
    low, high = (exact.item(),) * 2 if exact.size == 1 else (int(exact.min()), int(exact.max()))
    assert kind.get_int_min_value() <= low and high <= kind.get_int_max_value(), f"overflow of {kind} in {binary_op.__name__}"


def _broadcast(self: Any, lhs: Any, rhs: Any) -> Any:
    """To one shape, as views. Raises ValueError where there is none."""
    sizes = [each.type.sizes if each.type.is_block() else () for each in (lhs, rhs)]
    if sizes[0] == sizes[1]:
        return lhs, rhs
    common = _common(*sizes)
    return tuple([each if held == common else _spread(each, common) for each, held in zip((lhs, rhs), sizes, strict=True)])


_common = functools.cache(np.broadcast_shapes)


def _spread(value: Any, sizes: tuple[int, ...]) -> Any:
    data, kind = value.handle.data, value.handle.dtype.scalar
    if not value.type.is_block():
        data = data.astype(interpreter._get_np_dtype(kind), copy=False)
    if data.size == 1:
        view = np.ndarray(sizes, data.dtype, data, strides=(0,) * len(sizes))
        view.flags.writeable = False
    else:
        view = np.broadcast_to(data, sizes)
    return tl.tensor(interpreter.TensorHandle(view, kind), tl.block_type(value.type.scalar, sizes))


def _operands(check: Any) -> Any:
    """What two operands become is found by the language once for their types, and done without it after that.

    An operand of an elementwise operation keeps its own numbers under the common shape: NumPy spreads them.
    """
    plans: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def operands(
        self: Any,
        lhs: Any,
        rhs: Any,
        allow_lhs_ptr: bool = False,
        allow_rhs_ptr: bool = False,
        arithmetic_check: bool = True,
        div_or_mod: bool = False,
    ) -> tuple[Any, Any]:
        kinds = [each.type if each.__class__ is tl.tensor else self.to_tensor_type(each) for each in (lhs, rhs)]
        numbers = lhs.__class__ is not tl.tensor, rhs.__class__ is not tl.tensor
        key = (kinds[0].name, kinds[1].name, numbers, allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod)
        plan = plans.get(key)
        if plan is None:
            made = check(self, lhs, rhs, allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod)
            plans[key] = (made[0].type, made[1].type)
            return made
        return _made(self, lhs, plan[0]), _made(self, rhs, plan[1])

    return operands


def _made(self: Any, value: Any, kind: Any) -> Any:
    if value.__class__ is not tl.tensor:
        return _constant(self, value, kind)
    if value.type.name == kind.name:
        return value
    if value.dtype.name != kind.scalar.name:
        value = self.cast(value, kind.scalar)
    return value if value.type.name == kind.name else tl.tensor(value.handle, kind)


CONSTANTS: dict[tuple[Any, ...], Any] = {}


def _constant(self: Any, value: Any, kind: Any) -> Any:
    key = (value.hex() if value.__class__ is float else value, value.__class__, kind.name)
    known = CONSTANTS.get(key)
    if known is None:
        made = self._cast_to_computation_type(value, kind.scalar)
        made.handle.data.flags.writeable = False
        known = CONSTANTS[key] = tl.tensor(made.handle, kind)
    return known
