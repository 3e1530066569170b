"""Symbolic sizes: lowering recorded as a function of the sizes of its operands.

Kernels take extents and strides as arguments, so most of what lowering computes for another size is
the same kernel with other numbers. A `SymbolicSize` stands for a number in lowering: arithmetic
with it is recorded, and whatever lowering decides by it (comparisons, loops over a range, the text
of a kernel) becomes a guard. The recording, compiled to a Python function, gives the numbers for
other sizes, or None where a guard fails.
"""

from __future__ import annotations

import marshal
import math
import operator
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

Number = int | float

_ARITHMETIC: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "add": ("+", operator.add),
    "sub": ("-", operator.sub),
    "mul": ("*", operator.mul),
    "floordiv": ("//", operator.floordiv),
    "truediv": ("/", operator.truediv),
    "mod": ("%", operator.mod),
    "lshift": ("<<", operator.lshift),
    "rshift": (">>", operator.rshift),
    "and": ("&", operator.and_),
    "or": ("|", operator.or_),
    "xor": ("^", operator.xor),
}
_COMPARISONS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "eq": ("==", operator.eq),
    "ne": ("!=", operator.ne),
    "lt": ("<", operator.lt),
    "le": ("<=", operator.le),
    "gt": (">", operator.gt),
    "ge": (">=", operator.ge),
}

_SCOPE = {"inf": math.inf, "nan": math.nan, "math": math}
_NEUTRAL = {"+": 0, "*": 1}  # of operations whose operands may be exchanged


class Recorder:
    """Records a computation on sizes as the lines of a Python function.

    `interned` symbols may be keys of tables, together with other numbers of the recording: they all
    have one hash, so that each look-up compares them, which is guarded.
    """

    def __init__(self, sizes: Sequence[int], interned: bool = False) -> None:
        self.hash = hash(("size", id(self))) if interned else None
        self.symbols = [SymbolicSize(self, f"s{i}", n) for i, n in enumerate(sizes)]
        self._lines: list[str] = []
        self._results: dict[str, SymbolicSize] = {}
        self._guards: set[str] = set()
        self._scope: dict[str, Any] = dict(_SCOPE)

    def compute(self, text: str, value: Number) -> SymbolicSize:
        """The result of an expression."""
        found = self._results.get(text)
        if found is None:
            found = self._results[text] = SymbolicSize(self, f"t{len(self._results)}", value)
            self._lines.append(f"{found.name} = {text}")
        return found

    def guard(self, condition: str, holds: bool) -> bool:
        """Give what a condition is, and record that it has to be so."""
        if condition not in self._guards:
            self._guards.add(condition)
            self._lines.append(f"if {'not ' * holds}({condition}): return None")
        return holds

    def function(self, results: Sequence[Any]) -> Callable[..., tuple[Number, ...] | None]:
        """The recorded function of the sizes, with these results."""
        arguments = ", ".join(s.name for s in self.symbols)
        listed = ", ".join(map(_text, results))
        lines = [*self._lines, f"return ({listed}{',' if results else ''})"]
        source = f"def template({arguments}):\n " + "\n ".join(lines)
        # a code object: after an interrupt of `exec(text)`, even one that was handled, Python ends
        # the process as interrupted
        exec(compile(source, "<template>", "exec"), self._scope)
        return self._scope["template"]  # type: ignore[no-any-return]

    def constant(self, thing: Any) -> str:
        """The name of an object in the recorded function."""
        name = f"k{len(self._scope)}"
        self._scope[name] = thing
        return name


def pack_function(function: Any) -> tuple[bytes, dict[str, Any]]:
    """A recorded function as what `pickle` takes: its code for this version of Python, and the
    objects it names."""
    scope = function.__globals__.items()
    return marshal.dumps(function.__code__), {k: v for k, v in scope if k[0] == "k"}


def unpack_function(packed: tuple[bytes, dict[str, Any]]) -> Callable[..., Any]:
    code, constants = packed
    return FunctionType(marshal.loads(code), {**_SCOPE, **constants})


def decide(function: Callable[..., Any], *arguments: Any) -> Any:
    """`function(*arguments)`, a decision that depends on nothing else. Where sizes are symbolic,
    its result is guarded, and not each comparison on the way to it."""
    recorder = next((x.recorder for x in arguments if x.__class__ is SymbolicSize), None)
    if recorder is None:
        return function(*arguments)
    result = function(*map(_value, arguments))
    texts = [x.name if x.__class__ is SymbolicSize else recorder.constant(x) for x in arguments]
    call = f"{recorder.constant(function)}({', '.join(texts)})"
    recorder.guard(f"{call} == {recorder.constant(result)}", True)
    return result


def _text(number: Any) -> str:
    return number.name if number.__class__ is SymbolicSize else repr(number)


def _value(number: Any) -> Any:
    return number.value if number.__class__ is SymbolicSize else number


class SymbolicSize:
    """A number that lowering computes from sizes. Where Python asks for its value, that is guarded:
    the recording then holds for this value alone."""

    __slots__ = ("name", "recorder", "value")

    def __init__(self, recorder: Recorder, name: str, value: Number) -> None:
        self.recorder, self.name, self.value = recorder, name, value

    def __reduce__(self) -> Any:
        return _detached, (self.name, self.value)

    def fixed(self) -> Any:
        """The value, guarded."""
        self.recorder.guard(f"{self.name} == {self.value!r}", True)
        return self.value

    def _function(self, text: str, value: Number) -> SymbolicSize:
        return self.recorder.compute(text.format(self.name), value)

    def __index__(self) -> int:
        return operator.index(self.fixed())

    def __int__(self) -> int:
        return int(self.fixed())

    def __float__(self) -> float:
        return float(self.fixed())

    def __hash__(self) -> int:
        own = self.recorder.hash
        return hash(self.fixed()) if own is None else own

    def __repr__(self) -> str:
        return repr(self.fixed())

    def __format__(self, spec: str) -> str:
        return format(self.fixed(), spec)

    def __bool__(self) -> bool:
        return self.recorder.guard(f"{self.name} != 0", self.value != 0)

    def __neg__(self) -> SymbolicSize:
        return self._function("-{}", -self.value)

    def __pos__(self) -> SymbolicSize:
        return self

    def __abs__(self) -> SymbolicSize:
        return self._function("abs({})", abs(self.value))

    def __ceil__(self) -> SymbolicSize:
        return self._function("math.ceil({})", math.ceil(self.value))

    def __floor__(self) -> SymbolicSize:
        return self._function("math.floor({})", math.floor(self.value))

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def bit_length(self) -> SymbolicSize:
        return self._function("{}.bit_length()", int(self.value).bit_length())


_NO_RECORDER = Recorder(())


def _detached(name: str, value: Number) -> SymbolicSize:
    """A symbol of a recording that has ended: only its name is of use."""
    return SymbolicSize(_NO_RECORDER, name, value)


def _arithmetic(symbol: str, compute: Callable[[Any, Any], Any], reflected: bool) -> Any:
    def method(self: SymbolicSize, other: Any) -> Any:
        if other.__class__ is not SymbolicSize and not isinstance(other, (int, float)):
            return NotImplemented
        if symbol in _NEUTRAL and other.__class__ is int and other == _NEUTRAL[symbol]:
            return self
        a, b = (other, self) if reflected and symbol not in _NEUTRAL else (self, other)
        text = f"{_text(a)} {symbol} {_text(b)}"
        return self.recorder.compute(text, compute(_value(a), _value(b)))

    return method


def _comparison(symbol: str, compare: Callable[[Any, Any], bool]) -> Any:
    def method(self: SymbolicSize, other: Any) -> Any:
        if other is self:
            return compare(0, 0)
        if other.__class__ is not SymbolicSize and not isinstance(other, (int, float)):
            return NotImplemented
        condition = f"{self.name} {symbol} {_text(other)}"
        return self.recorder.guard(condition, compare(self.value, _value(other)))

    return method


for _name, (_symbol, _compute) in _ARITHMETIC.items():
    setattr(SymbolicSize, f"__{_name}__", _arithmetic(_symbol, _compute, reflected=False))
    setattr(SymbolicSize, f"__r{_name}__", _arithmetic(_symbol, _compute, reflected=True))
for _name, (_symbol, _compare) in _COMPARISONS.items():
    setattr(SymbolicSize, f"__{_name}__", _comparison(_symbol, _compare))
