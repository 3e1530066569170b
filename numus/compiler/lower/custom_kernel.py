"""Custom kernels in Python, traced element-wise to kernel IR for every backend.

The user's function is called once per dtypes and target, with a `Builder`, an `Array` for each
input and output and an expression for each scalar. Elements are SIMD lanes on a CPU (scalar loops
where control flow diverges) and threads on a GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.lower.elementwise import lower
from numus.dtypes import DType
from numus.errors import DTypeError
from numus.ir import Expr, Stmt, const
from numus.kernels.math import FUNCTIONS
from numus.target import Target

_OPERATIONS = frozenset(FUNCTIONS) | frozenset(
    "abs ceil copysign floor floor_divide maximum minimum mod rint sign sqrt trunc".split()
)
_CPU_BLOCK = 4096  # elements

Function = Callable[..., None]
IndexLike = Expr | int
Arrays = Sequence[tuple[str, DType, int]]  # name, dtype, number of axes
Scalars = Sequence[tuple[str, DType]]


@dataclass(frozen=True, slots=True)
class CustomKernel:
    """A kernel, and the elements of one of its blocks."""

    kernel: ir.Kernel
    block: int


def build(
    name: str, function: Function, inputs: Arrays, outputs: Arrays, scalars: Scalars, target: Target
) -> CustomKernel:
    """The kernel that a function describes. Arrays are (name, dtype, number of axes).

    Launches pass the number of elements, the extents of all arrays, and the scalars.
    """
    for array, dtype, _ in (*inputs, *outputs):
        if dtype.is_complex:
            raise DTypeError(
                f"{name}: {array} is {dtype.name}, and portable kernels compute with real numbers; "
                "give real and imaginary parts as arrays of their own"
            )

    def traced(lanes: bool) -> CustomKernel:
        return _trace(name, function, inputs, outputs, scalars, target.block_size, lanes)

    try:
        return traced(lanes=True)
    except _DivergenceError:  # SIMD lanes cannot diverge: elements one by one
        return traced(lanes=False)


class _DivergenceError(Exception):
    """Control flow differs between elements."""


def _trace(
    name: str,
    function: Function,
    inputs: Arrays,
    outputs: Arrays,
    scalars: Scalars,
    block_size: int,
    lanes: bool,
) -> CustomKernel:
    ir.new_build()
    k = Builder(name, lanes, may_diverge=bool(block_size) or not lanes)
    slots: list[tuple[str, DType]] = [("s0", dt.int64)]
    arrays = []
    for given, access in ((inputs, "read"), (outputs, "write")):
        for array, dtype, ndim in given:
            shape = []
            for _ in range(ndim):
                slots.append((f"s{len(slots)}", dt.int64))
                shape.append(ir.scalar(slots[-1][0]))
            arrays.append(Array(k, array, ir.Buffer(array, dtype, access), tuple(shape)))
    values = []
    for i, (_, dtype) in enumerate(scalars):
        carried = dt.int64 if dtype is dt.bool_ else dt.compute_dtype(dtype)
        slots.append((f"c{i}", carried))
        value = ir.scalar(f"c{i}", carried)
        values.append(value.ne(0) if dtype is dt.bool_ else value)
    function(k, *arrays, **dict(zip((n for n, _ in scalars), values, strict=True)))
    block = block_size or _CPU_BLOCK
    count, g = ir.scalar("s0"), ir.var("g")
    start, stop = ir.block_range(g, const(block), count)
    loop = ir.For(k.index, start, stop, "lanes" if lanes else "serial", k.body)
    blocks = ir.idiv(ir.add(count, const(block - 1)), const(block))
    body: list[Stmt] = [ir.For(g, const(0), blocks, "grid", [loop])]
    buffers = tuple(a.buffer for a in arrays)
    kernel = ir.Kernel(name, buffers, tuple(slots), body, (name,), block_size=block_size)
    return CustomKernel(kernel, block)


class Array:
    """An input or output in a kernel: `x[i]` is an element by its row-major index, `x[i, j]` one by
    an index for each axis; `x.shape` has the extents. Indices must be in bounds."""

    def __init__(self, k: Builder, name: str, buffer: ir.Buffer, shape: tuple[Expr, ...]) -> None:
        self._k = k
        self.name = name
        self.buffer = buffer
        self.shape = shape

    @property
    def dtype(self) -> DType:
        """The dtype of its elements; 16-bit and smaller floats are read as float32."""
        return self.buffer.dtype

    def __getitem__(self, at: IndexLike | tuple[IndexLike, ...]) -> Expr:
        return self.load(at)

    def load(self, at: IndexLike | tuple[IndexLike, ...], where: Expr | None = None) -> Expr:
        """An element; zero, without a load, where the condition does not hold."""
        found = ir.load(self.buffer, self._at(at), where)
        if self.dtype.is_low_precision:
            found = found.cast(dt.float32)
        return self._k.named(found) if self.buffer.access == "write" else found

    def __setitem__(self, at: IndexLike | tuple[IndexLike, ...], value: Expr | float) -> None:
        if self.buffer.access == "read":
            raise TypeError(f"{self._k.name}: {self.name} is an input, which is never written to")
        if not isinstance(value, Expr):
            value = const(value, dt.compute_dtype(self.dtype))
        self._k.do(ir.Store(self.buffer, self._at(at), value.cast(self.dtype)))

    def _at(self, at: IndexLike | tuple[IndexLike, ...]) -> Expr:
        indices = at if isinstance(at, tuple) else (at,)
        exprs = [const(p) if isinstance(p, int) else p for p in indices]
        for p in exprs:
            if not (isinstance(p, Expr) and p.dtype.is_integer):
                raise TypeError(f"{self._k.name}: {self.name}[{p!r}]: indices must be integers")
        exprs = [p.cast(ir.INDEX) for p in exprs]
        if len(exprs) == 1:
            return exprs[0]
        if len(exprs) != len(self.shape):
            raise IndexError(
                f"{self._k.name}: {self.name} has {len(self.shape)} axes, not {len(exprs)}"
            )
        total = exprs[0]
        for extent, p in zip(self.shape[1:], exprs[1:], strict=True):
            total = ir.add(ir.mul(total, extent), p)
        return total


class Variable:
    """A mutable number of a kernel: `v.value`, `v.set(...)`, `v += ...`."""

    def __init__(self, k: Builder, register: ir.Register) -> None:
        self._k = k
        self._register = register

    @property
    def value(self) -> Expr:
        """The current value."""
        return self._k.named(ir.read(self._register))

    def set(self, value: Expr | float) -> None:
        """Assign a value."""
        if not isinstance(value, Expr):
            value = const(value, self._register.dtype)
        if value.dtype is not self._register.dtype:
            raise TypeError(
                f"{self._k.name}: a {self._register.dtype.name} variable is set to "
                f"{value.dtype.name}; use k.cast"
            )
        self._k.do(ir.Set(self._register, value))

    def __iadd__(self, other: Expr | float) -> Variable:
        self.set(self.value + other)
        return self

    def __isub__(self, other: Expr | float) -> Variable:
        self.set(self.value - other)
        return self

    def __imul__(self, other: Expr | float) -> Variable:
        self.set(self.value * other)
        return self


class Builder:
    """Builds a kernel: `k.index` is the index of the element that is computed.

    Expressions have Python's operators; equality is `a.eq(b)` and `a.ne(b)`, and both sides have
    one dtype. Math functions are methods (`k.exp(x)`), as accurate as numus's own.
    """

    def __init__(self, name: str, lanes: bool, may_diverge: bool) -> None:
        self.name = name
        self.index = ir.var("i")
        self.body: list[Stmt] = []
        self._lanes = lanes
        self._may_diverge = may_diverge
        self._count = 0
        self._uniform: set[Expr] = set()  # variables of loops that do not diverge

    def do(self, statement: Stmt) -> None:
        """Append a statement."""
        self.body.append(statement)

    def named(self, value: Expr) -> Expr:
        """The value at this point of the program."""
        name = ir.var(self._name(), value.dtype)
        self.do(ir.Let(name, value))
        return name

    def _name(self) -> str:
        self._count += 1
        return f"k{self._count}"

    def variable(self, value: Expr | float, dtype: DType = dt.float32) -> Variable:
        """A number that can change; its dtype is that of `value` if that is an expression."""
        dtype = value.dtype if isinstance(value, Expr) else dt.compute_dtype(dtype)
        found = Variable(self, ir.Register(self._name(), dtype, lanes=self._lanes))
        found.set(value)
        return found

    @contextlib.contextmanager
    def loop(
        self, start: IndexLike, stop: IndexLike | None = None, step: int = 1
    ) -> Iterator[Expr]:
        """`with k.loop(n) as j:` repeats the block for j = 0 … n - 1."""
        if stop is None:
            start, stop = 0, start
        first, last = (const(x) if isinstance(x, int) else x.cast(ir.INDEX) for x in (start, stop))
        self._require_uniform(first)
        self._require_uniform(last)
        j = ir.var(self._name())
        self._uniform.add(j)
        with self._block() as body:
            yield j
        self.do(ir.For(j, first, last, "serial", body, step=const(step)))

    @contextlib.contextmanager
    def when(self, condition: Expr) -> Iterator[None]:
        """`with k.when(c):` runs the block only where the condition holds."""
        self._require_uniform(condition)
        with self._block() as body:
            yield
        self.do(ir.If(condition, body))

    @contextlib.contextmanager
    def _block(self) -> Iterator[list[Stmt]]:
        outer, self.body = self.body, []
        try:
            yield self.body
        finally:
            self.body = outer

    def _require_uniform(self, e: Expr) -> None:
        """SIMD lanes share their control flow."""
        if self._may_diverge:
            return
        for x in ir.walk(e, lambda x: True):
            if x.op in ("read", "load") or (x.op == "var" and x not in self._uniform):
                raise _DivergenceError

    def cast(self, value: Expr | float, dtype: DType) -> Expr:
        """A value in another dtype; 16-bit and smaller floats are rounded, and kept as float32."""
        value = value if isinstance(value, Expr) else const(value, dt.compute_dtype(dtype))
        return value.cast(dtype).cast(dt.compute_dtype(dtype))

    def where(self, condition: Expr, yes: Expr, no: Expr | float) -> Expr:
        """One of two values. Both are computed."""
        return ir.select(condition, yes, no if isinstance(no, Expr) else const(no, yes.dtype))

    def fma(self, a: Expr, b: Expr | float, c: Expr | float) -> Expr:
        """a * b + c, rounded once."""
        return ir.fma(a, b, c)

    def __getattr__(self, op: str) -> Callable[..., Expr]:
        if op not in _OPERATIONS:
            raise AttributeError(
                f"{self.__dict__.get('name', 'a kernel')}: portable kernels have no {op!r}; there "
                f"are {', '.join(sorted(_OPERATIONS))}, cast, fma, where, loop, when and variable"
            )

        def operation(*args: Expr | float) -> Expr:
            first = next((a for a in args if isinstance(a, Expr)), const(0.0, dt.float32))
            exprs = [a if isinstance(a, Expr) else const(a, first.dtype) for a in args]
            found: Expr = lower(op, exprs, [a.dtype for a in exprs], first.dtype, None)
            return found

        return operation
