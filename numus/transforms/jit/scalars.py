"""Traced Python numbers.

They stay weakly typed (`x_f16 * lr` is float16) and are computed by Python at each call, so that
`1 - beta**t` has the same bits as without jit. A number becomes a scalar of the program where it
meets a tensor, in the dtype it has there.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from numus import dtypes as dt
from numus.errors import TracingError
from numus.evaluation.evaluate import user_line
from numus.graph import Node

_KINDS = {bool: "bool", int: "int", float: "float", complex: "complex"}


class Scalar(dt.Weak):
    """An argument, or a number that Python computed from arguments."""

    __slots__ = ("compute", "sample", "trace")

    def __init__(
        self, trace: Any, compute: Callable[[Sequence[Any]], Any], sample: int | float | complex
    ) -> None:
        self.trace = trace
        self.compute = compute  # from the numbers among the arguments of a call
        self.sample = sample  # its value in the trace
        self.weak_kind = _KINDS[type(sample)]

    def node(self, dtype: dt.DType) -> Node:
        self.trace.check_open()
        return self.trace.scalar(self, dtype)

    def __repr__(self) -> str:
        return f"<{self.weak_kind} traced in {self.trace}>"

    def _refuse(self, what: str) -> Any:
        raise TracingError(
            f"{what} needs a number that is an argument of {self.trace}, and is not known while "
            f"that is traced{user_line()}; name the argument in static_argnums (each value is then "
            "traced by itself), or use nm.where and nm.cond"
        )

    def __bool__(self) -> bool:
        return bool(self._refuse("a Python condition"))

    def __int__(self) -> int:
        return int(self._refuse("int()"))

    def __float__(self) -> float:
        return float(self._refuse("float()"))

    def __complex__(self) -> complex:
        return complex(self._refuse("complex()"))

    def __index__(self) -> int:
        return int(self._refuse("a shape, an axis or an index"))

    def __round__(self, digits: int | None = None) -> Any:
        return _apply(round, self, digits)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    real: Any = property(lambda self: _apply(operator.attrgetter("real"), self))
    imag: Any = property(lambda self: _apply(operator.attrgetter("imag"), self))

    def conjugate(self) -> Any:
        return _apply(operator.methodcaller("conjugate"), self)

    __hash__ = object.__hash__


def _apply(function: Callable[..., Any], *operands: Any) -> Any:
    """A number computed from others."""
    trace = next(x.trace for x in operands if isinstance(x, Scalar))
    parts = [x.compute if isinstance(x, Scalar) else None for x in operands]

    def compute(numbers: Sequence[Any]) -> Any:
        return function(
            *(x if part is None else part(numbers) for x, part in zip(operands, parts, strict=True))
        )

    samples = (x.sample if isinstance(x, Scalar) else x for x in operands)
    return Scalar(trace, compute, function(*samples))


def _unary(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda self: _apply(function, self)


def _binary(function: Callable[..., Any], reflected: bool = False) -> Callable[[Any, Any], Any]:
    def method(self: Scalar, other: Any) -> Any:
        if not (type(other) in _KINDS or isinstance(other, Scalar)):
            return NotImplemented
        return _apply(function, other, self) if reflected else _apply(function, self, other)

    return method


for _name in "add sub mul truediv floordiv mod pow and_ or_ xor lshift rshift".split():
    _function = getattr(operator, _name)
    _name = _name.rstrip("_")
    setattr(Scalar, f"__{_name}__", _binary(_function))
    setattr(Scalar, f"__r{_name}__", _binary(_function, reflected=True))
for _name in "lt le gt ge eq ne".split():
    setattr(Scalar, f"__{_name}__", _binary(getattr(operator, _name)))
for _name in "neg pos abs invert".split():
    setattr(Scalar, f"__{_name}__", _unary(getattr(operator, _name)))
for _function in (math.floor, math.ceil, math.trunc):
    setattr(Scalar, f"__{_function.__name__}__", _unary(_function))
