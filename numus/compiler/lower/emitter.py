"""Emission of graph values as kernel-IR expressions: element `index` of a value.

Elementwise operations combine their operands' elements, values in memory are loaded, and views and
sources have index rules (`index_rules.py`). Kernels are shape-generic: extents and strides above 1
are scalar arguments, and equal numbers share one, so that index arithmetic cancels symbolically.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Layouts, Value
from numus.compiler.lower.elementwise import lower
from numus.compiler.lower.index_simplify import Extents
from numus.dtypes import DType
from numus.ir import Expr, const
from numus.shapes import Shape, row_major, size_of

ZERO = const(0)

Index = tuple[Expr, ...]
Request = tuple[Value, Index, Expr | None]  # an element of an operand, unless a mask is false
Rule = Generator[Request, Any, Any]
IndexRule = Callable[["Emitter", Value, Index, Expr | None], Rule]

# Index rules by operation: generators, which `yield` a request to get an element of an operand, so
# that graphs of any depth need no recursion. `index_rules.py` registers them.
INDEX_RULES: dict[str, IndexRule] = {}


def index_rule(op: str) -> Callable[[IndexRule], IndexRule]:
    """Register the index rule of an operation."""

    def register(rule: IndexRule) -> IndexRule:
        INDEX_RULES[op] = rule
        return rule

    return register


def broadcast_index(x: Value, index: Index) -> Index:
    """The index of a broadcast operand."""
    lead = len(index) - len(x.shape)
    return tuple(ZERO if n == 1 else i for n, i in zip(x.shape, index[lead:], strict=True))


@dataclass(slots=True)
class LoweredKernel:
    """A kernel and the arguments of one launch."""

    kernel: ir.Kernel
    buffers: list[Value]  # in the order of the kernel's buffers; scratch comes after them
    scalars: list[Any]  # numbers, or (constant, part) that each run fills in
    grid: int
    scratch: list[int]  # bytes per worker of each scratch buffer

    def scratch_bytes(self, workers: int) -> int:
        """Bytes of scratch memory of so many workers, no more than there are blocks."""
        return min(workers, self.grid) * sum(self.scratch)


Kernels = list[LoweredKernel]


class Emitter:
    """Builds the expressions of one kernel and collects its buffers and scalar arguments.

    `layouts` has the strides of every value in memory; `bindings` the values that the kernel has in
    registers, as functions of the index (None: not at this one).
    """

    def __init__(self, layouts: Layouts, small: bool = False, block_size: int = 0) -> None:
        self.layouts = layouts
        self.small = small  # little data: short code beats fast code
        self.block_size = block_size  # threads of a block; 0: lanes are SIMD
        self.packed_blocks = 1  # independent blocks launched as one
        self.cluster_size = 1  # CTAs of a block
        self.cluster_blocks = 1  # that read each other's scratch
        self.flags: tuple[ir.Buffer, int] | None = None  # words by which these signal each other
        self.persistent = False  # blocks loop over the grid
        self.resident_blocks = 0  # of a multiprocessor, which registers are to suffice for
        self.stores_once = False  # each element of a result is stored a single time
        self.static = False  # sizes are constants of the code: for short code of few structures
        self.fixed: Container[int] = ()  # of others, those that are
        self.alignment = 1  # divisible sizes are emitted as k * alignment: provably aligned
        self.bindings: dict[Value, Callable[[Index], Any]] = {}
        self.extents: Extents = {}
        self.buffers: dict[Value, ir.Buffer] = {}
        self.scratch: list[ir.Buffer] = []
        self.dims: list[tuple[int, Expr]] = []  # sizes and strides with their scalar arguments
        self.scalar_args: list[int] = []  # numbers of the schedule: block sizes, counts
        self.constants: dict[Value, Any] = {}  # constant -> its scalar argument(s)
        self.accesses: list[Expr] = []  # addresses and counters, whose strides choose the loops
        self.loads: list[
            tuple[Value, Index | None]
        ] = []  # values in memory, and where (None: views)
        # values of which a copy is read, with axes in another order
        self.relaid: dict[Value, tuple[Value, tuple[int, ...]]] = {}
        # slices of a larger value: slice -> (whole, axis, start along that axis)
        self.redirect: dict[Value, tuple[Value, int, int]] = {}
        # indices of consecutive axes that were made from a linear one, their extents, and that one
        self.joined: tuple[Index, Shape, Expr] | None = None
        self._memo: dict[Request, Any] = {}

    # -- scalar arguments --------------------------------------------------------------------------

    def dim(self, n: int) -> Expr:
        """A size, stride or offset: a symbolic dimension, passed at launch."""
        if self.static or n in self.fixed or -1 <= n <= 1:
            return const(n)
        if self.alignment > 1 and n > 1 and n % self.alignment == 0:
            multiple = ir.mul(self._dim(n // self.alignment), const(self.alignment))
            self.extents[multiple] = None
            return multiple
        return self._dim(n)

    def _dim(self, n: int) -> Expr:
        for number, found in self.dims:
            if number == n:
                return found
        found = ir.scalar(f"n{len(self.dims)}")
        self.dims.append((n, found))
        if n > 0:
            self.extents[found] = None
        return found

    def times(self, index: Expr, size: Expr) -> Expr:
        """An index times a size. Constants are multiplied apart where sizes are, too: neighbours
        then have addresses in common."""
        if self.static and index.op == "add" and index.args[1].op == size.op == "const":
            rest, offset = index.args
            return ir.add(self.times(rest, size), const(offset.attr * size.attr))
        return ir.mul(index, size)

    def scalar_arg(self, n: int) -> Expr:
        """A number of the schedule, which no code is specialised on."""
        if self.static:
            return const(n)
        self.scalar_args.append(n)
        return ir.scalar(f"s{len(self.scalar_args) - 1}")

    def variable(self, name: str, extent: Expr) -> Expr:
        """A loop variable in [0, extent)."""
        v = ir.var(name)
        self.extents[v] = extent
        return v

    def bind(self, val: Value, value: Any, at: Index | None = None) -> None:
        """The kernel has this value in registers: at an index, or at any."""
        self.bindings[val] = lambda index: value if at is None or index == at else None

    def invalidate(self) -> None:
        """Registers have changed: expressions emitted before are stale."""
        self._memo.clear()

    def rebind(self, val: Value, value: Any) -> None:
        """Bind another value than before, at any index."""
        self.invalidate()
        self.bind(val, value)

    # -- memory -----------------------------------------------------------------------------------

    def buffer(self, val: Value, access: str = "read") -> ir.Buffer:
        found = self.buffers.get(val)
        if found is None:
            dtype = dt.real_of(val.dtype)
            found = ir.Buffer(f"b{len(self.buffers)}", dtype, access)
            self.buffers[val] = found
        elif access == "write":
            found.access = "write"
        return found

    def byte_buffer(self, val: Value) -> ir.Buffer:
        """The buffer of a value that its kernel reads as bytes, and as nothing else."""
        assert val not in self.buffers
        found = self.buffers[val] = ir.Buffer(f"b{len(self.buffers)}", dt.uint8, "read")
        return found

    def address(self, val: Value, index: Index, strides: Shape | None = None) -> Expr:
        """The offset of an element in its buffer."""
        return self._address(index, val.shape, self.layouts[val] if strides is None else strides)

    def _address(self, index: Index, shape: Shape, strides: Shape) -> Expr:
        total = ZERO
        if self.joined is not None:
            index, shape, strides = self._rejoined(self.joined, index, shape, strides)
        last = len(shape) - 1
        for axis, (i, s, n) in enumerate(zip(index, strides, shape, strict=True)):
            if n != 1 and s != 0:
                # every second element along the lanes is a vector load, if the code knows it
                every_second = 2 if s == 2 else -2 if s == -2 else 0
                factor = const(every_second) if every_second and axis == last else self.dim(s)
                total = ir.add(total, self.times(i, factor))
        return total

    def _rejoined(
        self, joined: tuple[Index, Shape, Expr], index: Index, shape: Shape, strides: Shape
    ) -> tuple[Index, Shape, Shape]:
        """The linear index for axes that lie in memory like one, as those of parts of a longer one
        do not: no division is left."""
        parts, counts, linear = joined
        axes = [a for a, n in enumerate(shape) if n != 1]
        for first in range(len(axes) - len(parts) + 1):
            own = axes[first : first + len(parts)]
            pairs = zip(pairwise(own), counts[1:], strict=True)
            like_one = all(strides[a] == strides[b] * n for (a, b), n in pairs)
            if like_one and all(index[a] is i for a, i in zip(own, parts, strict=True)):
                rest = axes[:first], axes[first + len(parts) :]
                order = [*rest[0], own[-1], *rest[1]]
                found = [linear if a == own[-1] else index[a] for a in order]
                extents = [size_of(shape) if a == own[-1] else shape[a] for a in order]
                return tuple(found), tuple(extents), tuple(strides[a] for a in order)
        return index, shape, strides

    def load(
        self, val: Value, index: Index, mask: Expr | None, view: tuple[Shape, Shape] | None = None
    ) -> Any:
        """An element of a value in memory, or of a `view` of it with another shape and strides."""
        self.loads.append((val, index if view is None else None))
        if view is None and val in self.relaid:
            val, order = self.relaid[val]
            index = tuple(index[a] for a in order)
        at = self.address(val, index) if view is None else self._address(index, *view)
        self.accesses.append(at)
        buffer = self.buffer(val)
        if val.dtype.is_complex:
            twice = ir.mul(at, const(2))
            return (ir.load(buffer, twice, mask), ir.load(buffer, ir.add(twice, const(1)), mask))
        return ir.load(buffer, at, mask)

    def store(
        self, val: Value, index: Index, value: Any, mask: Expr | None = None
    ) -> list[ir.Stmt]:
        """Statements that store an element of a result (row-major in its buffer)."""
        if val in self.redirect:
            val, axis, start = self.redirect[val]
            moved = ir.add(index[axis], self.dim(start))
            index = (*index[:axis], moved, *index[axis + 1 :])
        at = self.address(val, index, row_major(val.shape))
        self.accesses.append(at)
        buffer = self.buffer(val, "write")
        if val.dtype.is_complex:
            twice = ir.mul(at, const(2))
            return [
                ir.Store(buffer, twice, value[0], mask),
                ir.Store(buffer, ir.add(twice, const(1)), value[1], mask),
            ]
        return [ir.Store(buffer, at, value, mask)]

    # -- the finished kernel ----------------------------------------------------------------------

    def grid_kernel(
        self,
        name: str,
        block: Expr,
        body: list[ir.Stmt],
        grid: int,
        notes: tuple[str, ...],
        max_resident_blocks: int = 0,
    ) -> LoweredKernel:
        """A kernel of `grid` blocks, `block` being the number of one. With a maximum of resident
        blocks it is persistent: no more are launched, and they loop over the grid."""
        loop = ir.For(block, ZERO, self.scalar_arg(grid), "grid", body)
        self.persistent = bool(max_resident_blocks)
        grid = min(grid, max_resident_blocks or grid)
        return self.finish(name, [loop], -(-grid // self.packed_blocks) * self.cluster_size, notes)

    def finish(
        self, name: str, body: list[ir.Stmt], grid: int, notes: tuple[str, ...]
    ) -> LoweredKernel:
        """The kernel with these statements, and its arguments."""
        buffers = (*self.buffers.values(), *self.scratch)
        sizes: dict[str, int] = {slot.attr: n for n, slot in self.dims}
        sizes.update((f"s{i}", n) for i, n in enumerate(self.scalar_args))
        scalars: list[tuple[str, DType]] = [(name, dt.int64) for name in sizes]
        values: list[Any] = list(sizes.values())
        for i, val in enumerate(self.constants):
            part = dt.compute_dtype(dt.real_of(val.dtype))
            if val.dtype.is_complex:
                scalars += [(f"c{i}r", part), (f"c{i}i", part)]
                values += [(val.params[1], "real"), (val.params[1], "imag")]
            else:
                scalars.append((f"c{i}", dt.int64 if part is dt.bool_ else part))
                values.append((val.params[1], "whole"))
        small = self.small and not self.block_size
        kernel = ir.Kernel(
            *(name, buffers, tuple(scalars), body, notes, small),
            *(self.block_size, self.packed_blocks, self.cluster_size, self.flags, self.persistent),
            stores_once=self.stores_once,
            resident_blocks=self.resident_blocks,
            cluster_blocks=self.cluster_blocks,
        )
        scratch = [b.count(sizes) * b.dtype.itemsize for b in self.scratch if b.size]
        return LoweredKernel(kernel, list(self.buffers), values, grid, scratch)

    # -- values -----------------------------------------------------------------------------------

    def value(self, val: Value, index: Index, mask: Expr | None = None) -> Any:
        """Element `index` of `val` (a pair if complex); loads are predicated by the mask."""
        memo = self._memo
        stack: list[tuple[Request, Rule]] = []
        wanted: Request | None = (val, index, mask)
        answer: Any = None
        while True:
            if wanted is not None:
                if wanted in memo:
                    answer = memo[wanted]
                else:
                    stack.append((wanted, self._rule(*wanted)))
                    answer = None
            if not stack:
                return answer
            key, rule = stack[-1]
            try:
                wanted = rule.send(answer)
            except StopIteration as done:
                stack.pop()
                answer = memo[key] = done.value
                wanted = None
                if not stack:
                    return answer

    def combine(self, val: Value, args: list[Any]) -> Any:
        """An element of an elementwise operation, from those of its operands."""
        return lower(val.op, args, [x.dtype for x in val.inputs], val.dtype, val.params)

    def _rule(self, val: Value, index: Index, mask: Expr | None) -> Rule:
        if val in self.bindings:
            bound = self.bindings[val](index)
            if bound is not None:
                return bound
        if val in self.layouts:
            return self.load(val, index, mask)
        if val.kind == "elementwise" or val.op == "barrier":
            args = []
            for x in val.inputs:
                args.append((yield x, broadcast_index(x, index), mask))
            return self.combine(val, args)
        rule = INDEX_RULES.get(val.op)
        if rule is None:
            raise AssertionError(f"{val.op} is neither in memory nor an expression")
        return (yield from rule(self, val, index, mask))


class IndexProbe(Emitter):
    """Finds the indices at which values are read. What is computed from them is left open."""

    def combine(self, val: Value, args: list[Any]) -> Any:
        return unknown(f"e{val.id}", val.dtype)


def unknown(name: str, dtype: DType) -> Any:
    """Any element of this dtype (a pair if complex)."""
    if not dtype.is_complex:
        return ir.scalar(name, dtype)
    return tuple(ir.scalar(name + part, dt.real_of(dtype)) for part in "ri")
