"""Python's operators on tensors.

Operands of one float dtype take a fast path: the primitive is applied by bytecode
(`runtime/pycall`).
In-place operators re-bind the handle to the result; shape and dtype must not change.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from numus import dtypes as dt
from numus.dispatch.call_cache import GUARD_FAILED
from numus.dispatch.node_ops import FastCall, guard_modes, inherit, new_node
from numus.dtypes import DType
from numus.errors import DTypeError
from numus.evaluation.evaluate import check_known
from numus.evaluation.host_reads import check_readable
from numus.functions.elementwise import arithmetic, comparison
from numus.functions.linear.matmul import matmul
from numus.graph import PRIMITIVES, Node, Primitive, mode
from numus.primitives import elementwise as ew
from numus.primitives.contract import contract
from numus.primitives.source import constant, new_constant
from numus.tensor import Tensor, named_kind, new_handle

if TYPE_CHECKING:
    from numus.runtime.pycall.builder import BytecodeBuilder

Binary = Callable[[Any, Any], Tensor]


def _is_operand(x: Any) -> bool:
    if isinstance(x, (Tensor, np.ndarray, np.generic)) or dt.scalar_kind(x) is not None:
        return True
    if type(x).__name__ == "Tensor":  # Python's own error would say: 'Tensor' and 'Tensor'
        raise TypeError(
            f"a numus.Tensor and {named_kind(x)} do not mix; make the other one numus's by "
            "nm.asarray(x)"
        )
    return False


def _write(code: BytecodeBuilder, prim: Primitive, kinds: str) -> int:
    """A primitive of two operands of one float dtype: tensors ("t") and numbers ("n")."""
    positions = [i for i, kind in enumerate(kinds) if kind == "t"]
    tensors = {i: code.get_member(code.load_arg(i), Tensor, "_node") for i in positions}
    first, *others = tensors.values()
    dtype = code.load_slot(first, Node, "dtype")
    code.slot_is(dtype, DType, "kind", "float")
    shape = code.load_slot(first, Node, "shape")
    for x in others:
        code.is_same(dtype, code.load_slot(x, Node, "dtype"))
        shape = code.broadcast_shape(shape, code.load_slot(x, Node, "shape"))
    inherited = inherit(code, [first, *others])
    inputs = [
        tensors[i] if kind == "t" else new_constant(code, code.load_float_arg(i), dtype)
        for i, kind in enumerate(kinds)
    ]
    members = {"inputs": code.new_tuple(inputs), "shape": shape, "dtype": dtype, **inherited}
    node = new_node(code, {"prim": prim, "params": None}, members, handled=True)
    return new_handle(code, node)


def _guarded(function: Callable[[Any, Any], Any]) -> tuple[Binary, Binary]:
    """x op y and y op x; NotImplemented for other operands."""

    def forward(self: Tensor, other: Any) -> Any:
        return function(self, other) if _is_operand(other) else NotImplemented

    def reflected(self: Tensor, other: Any) -> Any:
        return function(other, self) if _is_operand(other) else NotImplemented

    for made in (forward, reflected):
        made.__annotations__["return"] = function.__annotations__["return"]
    return forward, reflected


def _install_fast(name: str, function: Binary, prim: Callable[[Node, Node], Node]) -> None:
    """x op y, y op x and x op= y of one primitive for operands of one float dtype."""
    with_tensor, with_number, from_number = (
        FastCall(2, partial(_write, prim=PRIMITIVES[prim.__name__], kinds=kinds))
        for kinds in ("tt", "tn", "nt")
    )

    def forward(self: Tensor, other: Any) -> Tensor:
        kind = other.__class__
        is_number = kind is float or kind is int
        found: Tensor = (with_number if is_number else with_tensor).call(self, other)
        if found is not GUARD_FAILED:
            return found
        x = self._node
        if x.dtype.kind == "float":
            if kind is Tensor:
                if x.dtype is other._node.dtype:
                    return Tensor(prim(x, other._node))
            elif is_number:
                return Tensor(prim(x, constant(float(other), x.dtype)))
        return function(self, other) if _is_operand(other) else NotImplemented

    def reflected(self: Tensor, other: Any) -> Tensor:
        found: Tensor = from_number.call(other, self)
        if found is not GUARD_FAILED:
            return found
        x, kind = self._node, other.__class__
        if x.dtype.kind == "float" and (kind is float or kind is int):
            return Tensor(prim(constant(float(other), x.dtype), x))
        return function(other, self) if _is_operand(other) else NotImplemented

    _add_methods(name, forward, reflected)


def _add_methods(name: str, forward: Binary, reflected: Binary) -> None:
    def in_place(self: Tensor, other: Any) -> Tensor:
        result = forward(self, other)
        if result is NotImplemented:
            return result
        return self.rebind(result._node, f"__i{name}__")

    _set_method(f"__{name}__", forward)
    _set_method(f"__r{name}__", reflected)
    _set_method(f"__i{name}__", in_place)


def _set_method(name: str, method: Any) -> None:
    method.__name__, method.__qualname__ = name, f"Tensor.{name}"
    setattr(Tensor, name, method)


def _write_product(code: BytecodeBuilder) -> int:
    """The product of two matrices of one float dtype, at full precision."""
    guard_modes(code, {"autocast": None})
    a, b = (code.get_member(code.load_arg(i), Tensor, "_node") for i in range(2))
    dtype = code.load_slot(a, Node, "dtype")
    code.slot_is(dtype, DType, "kind", "float")
    code.is_same(dtype, code.load_slot(b, Node, "dtype"))
    rows, columns = (code.load_slot(x, Node, "shape") for x in (a, b))
    code.len_eq(rows, 2)
    code.len_eq(columns, 2)
    code.same_int(code.load_item(rows, 1), code.load_item(columns, 0))
    shape = code.new_tuple([code.load_item(rows, 0), code.load_item(columns, 1)])
    members = {"inputs": code.new_tuple([a, b]), "shape": shape, "dtype": dtype}
    constants = {"prim": PRIMITIVES["contract"], "params": None}
    node = new_node(code, constants, {**members, **inherit(code, [a, b])}, handled=True)
    return new_handle(code, node)


_product = FastCall(2, _write_product)


def _matmul(x: Any, y: Any) -> Tensor:
    """`matmul`, with fast paths for two matrices of one float dtype."""
    found: Tensor = _product.call(x, y)
    if found is not GUARD_FAILED:
        return found
    if x.__class__ is Tensor and y.__class__ is Tensor and mode.autocast is None:
        a, b = x._node, y._node
        same_float = a.dtype is b.dtype and a.dtype.kind == "float"
        if same_float and len(a.shape) == len(b.shape) == 2 and a.shape[1] == b.shape[0]:
            return Tensor(contract(a, b, a.dtype))
    return matmul(x, y)


_install_fast("add", arithmetic.add, ew.add)
_install_fast("sub", arithmetic.subtract, ew.sub)
_install_fast("mul", arithmetic.multiply, ew.mul)
_install_fast("truediv", arithmetic.divide, ew.div)
_divided, _times = Tensor.__truediv__, Tensor.__mul__
_POWERS_OF_TWO = frozenset(2.0**n for n in range(-14, 15) if n)  # inverses are exact in all dtypes


def _over(self: Tensor, other: Any) -> Tensor:
    """x / y; a product where that is the same number: division takes ten times as long."""
    kind = other.__class__
    is_number = kind is int or kind is float
    if is_number and other in _POWERS_OF_TWO and self._node.dtype.kind == "float":
        return _times(self, 1.0 / other)
    return _divided(self, other)


_set_method("__truediv__", _over)
_add_methods("floordiv", *_guarded(arithmetic.floor_divide))
_add_methods("mod", *_guarded(arithmetic.remainder))
_add_methods("pow", *_guarded(arithmetic.pow))
_add_methods("matmul", *_guarded(_matmul))
_add_methods("and", *_guarded(comparison.bitwise_and))
_add_methods("or", *_guarded(comparison.bitwise_or))
_add_methods("xor", *_guarded(comparison.bitwise_xor))
_add_methods("lshift", *_guarded(comparison.bitwise_left_shift))
_add_methods("rshift", *_guarded(comparison.bitwise_right_shift))
_divmod, _rdivmod = _guarded(arithmetic.divmod)
_set_method("__eq__", _guarded(comparison.equal)[0])
_set_method("__ne__", _guarded(comparison.not_equal)[0])
_set_method("__lt__", _guarded(comparison.less)[0])
_set_method("__le__", _guarded(comparison.less_equal)[0])
_set_method("__gt__", _guarded(comparison.greater)[0])
_set_method("__ge__", _guarded(comparison.greater_equal)[0])


def _round(self: Tensor, ndigits: int | None = 0) -> Tensor:
    return arithmetic.round(self, ndigits or 0)


def _bool(self: Tensor) -> bool:
    if self.size != 1:
        raise ValueError(
            f"the truth value of a tensor of shape {self.shape} is ambiguous; "
            "use nm.any(x) or nm.all(x)"
        )
    if self._node.abstract:
        check_known(self._node, "a Python condition (if, while, and, bool())")
    return bool(self._item())


def _int(self: Tensor) -> int:
    return int(_real(self, "int"))


def _float(self: Tensor) -> float:
    check_readable(self._node, "float()")
    return float(_real(self, "float"))


def _complex(self: Tensor) -> complex:
    check_readable(self._node, "complex()")
    return complex(self._item())


def _real(x: Tensor, wanted: str) -> Any:
    if x._node.dtype.is_complex:
        raise DTypeError(f"{wanted}(): a complex tensor has no order; take nm.real(x) or nm.abs(x)")
    return x._item()


def _index(self: Tensor) -> int:
    if self.ndim or not self._node.dtype.is_integer:
        raise TypeError(
            f"only integer tensors without axes can be used as an index, not "
            f"{self.dtype.name}{list(self.shape)}"
        )
    return operator.index(self.item())


def _len(self: Tensor) -> int:
    if not self.shape:
        raise TypeError("len() of a 0-dimensional tensor")
    return self.shape[0]


def _iter(self: Tensor) -> Iterator[Tensor]:
    if not self.shape:
        raise TypeError("iteration over a 0-dimensional tensor")
    return (self[i] for i in range(self.shape[0]))


def _contains(self: Tensor, item: Any) -> bool:
    return bool((self == item).numpy().any())


_METHODS: dict[str, Any] = {
    **{"__divmod__": _divmod, "__rdivmod__": _rdivmod, "__invert__": comparison.bitwise_invert},
    **{"__neg__": arithmetic.negative, "__pos__": arithmetic.positive, "__abs__": arithmetic.abs},
    **{"__floor__": arithmetic.floor, "__ceil__": arithmetic.ceil, "__trunc__": arithmetic.trunc},
    **{"__round__": _round, "__bool__": _bool, "__int__": _int, "__float__": _float},
    **{"__complex__": _complex, "__index__": _index, "__len__": _len, "__iter__": _iter},
    **{"__contains__": _contains, "__hash__": object.__hash__},
}
for _name, _method in _METHODS.items():
    setattr(Tensor, _name, _method)
