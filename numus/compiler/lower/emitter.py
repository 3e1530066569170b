"""From graph values to kernel-IR expressions: what is element `index` of a value?

Elementwise operations combine what comes up, stored values are loaded, and whatever else is part of
a kernel has a rule (`elements.py`).

Sizes never become part of a kernel. Every extent and stride above 1 is a scalar slot; numbers that
are equal in this graph share a slot, which lets index arithmetic cancel symbolically.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.elementwise import lower
from numus.compiler.lower.index_rules import RULES, Index, Request, Rule, aligned
from numus.compiler.lower.index_simplify import Extents
from numus.dtypes import DType
from numus.ir import Expr, const
from numus.shapes import Shape, row_major

ZERO = const(0)


@dataclass(slots=True)
class LoweredKernel:
    """A kernel and what one call of it takes."""

    kernel: ir.Kernel
    buffers: list[Value]  # in the order of the kernel's buffers; scratch comes after them
    scalars: list[Any]  # numbers, or (constant, part) to be filled in at launch
    grid: int
    scratch: list[int]  # bytes per worker of each scratch buffer

    def scratch_bytes(self, workers: int) -> int:
        """Bytes of scratch memory if so many may take part; there is one for each block at most."""
        return min(workers, self.grid) * sum(self.scratch)


class Emitter:
    """Builds the expressions of one kernel and collects its buffers and slots.

    `layouts` gives the strides of every value that is in memory; `known` the values that the kernel
    holds in registers, as functions of the index (None: not at this one).
    """

    def __init__(
        self, layouts: dict[Value, Shape], small: bool = False, block_size: int = 0
    ) -> None:
        self.layouts = layouts
        self.small = small  # whether there is so little data that short code beats quick code
        self.block_size = block_size  # threads of a group, where lanes are such
        self.packed_blocks = 1  # groups of a block, where they share nothing
        self.cluster_size = 1  # blocks of a group
        self.flags: tuple[ir.Buffer, int] | None = None  # on which they tell each other something
        self.persistent = False  # whether groups take one number of the grid after the other
        self.alignment = 1  # sizes that are multiples of it are written so, for whoever asks
        self.bindings: dict[Value, Callable[[Index], Any]] = {}
        self.extents: Extents = {}
        self.buffers: dict[Value, ir.Buffer] = {}
        self.scratch: list[ir.Buffer] = []
        self.dims: dict[int, Expr] = {}  # size or stride -> its slot
        self.scalar_args: list[int] = []  # what the schedule chose: block sizes, counts
        self.constants: dict[Value, Any] = {}  # constant -> its slot expression(s)
        self.accesses: list[Expr] = []  # where in memory, and counters: loops are chosen by these
        # parts of a larger value: part -> (whole, axis, where it starts along that axis)
        self.redirect: dict[Value, tuple[Value, int, int]] = {}
        self._memo: dict[Request, Any] = {}

    # -- numbers ----------------------------------------------------------------------------------

    def dim(self, n: int) -> Expr:
        """A size, stride or offset as a value given at launch."""
        if -1 <= n <= 1:
            return const(n)
        if self.alignment > 1 and n > 1 and n % self.alignment == 0:
            many = ir.mul(self._slot(n // self.alignment), const(self.alignment))
            self.extents[many] = None
            return many
        return self._slot(n)

    def _slot(self, n: int) -> Expr:
        found = self.dims.get(n)
        if found is None:
            found = self.dims[n] = ir.scalar(f"n{len(self.dims)}")
            if n > 0:
                self.extents[found] = None
        return found

    def scalar_arg(self, n: int) -> Expr:
        """A number of the schedule's own: always a slot, so that its value shapes no code."""
        self.scalar_args.append(n)
        return ir.scalar(f"s{len(self.scalar_args) - 1}")

    def variable(self, name: str, extent: Expr) -> Expr:
        """A loop variable that runs below `extent`."""
        v = ir.var(name)
        self.extents[v] = extent
        return v

    def bind(self, val: Value, value: Any, at: Index | None = None) -> None:
        """From here on, the kernel has this value in registers: for this index, or for any."""
        self.bindings[val] = lambda index: value if at is None or index == at else None

    def invalidate(self) -> None:
        """What is held has changed: nothing that was emitted before stands for it any more."""
        self._memo.clear()

    def rebind(self, val: Value, value: Any) -> None:
        """Hold another value than before, at whatever index: nothing made of the old one stays."""
        self._memo.clear()
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

    def address(self, val: Value, index: Index, strides: Shape | None = None) -> Expr:
        """Where an element lies in its buffer."""
        return self._address(index, val.shape, self.layouts[val] if strides is None else strides)

    def _address(self, index: Index, shape: Shape, strides: Shape) -> Expr:
        total = ZERO
        for i, s, n in zip(index, strides, shape, strict=True):
            if n != 1 and s != 0:
                total = ir.add(total, ir.mul(i, self.dim(s)))
        return total

    def load(
        self, val: Value, index: Index, mask: Expr | None, seen: tuple[Shape, Shape] | None = None
    ) -> Any:
        """An element of a value in memory; by an index of its own, or of the shape and strides that
        it is `seen` with.
        """
        at = self.address(val, index) if seen is None else self._address(index, *seen)
        self.accesses.append(at)
        buffer = self.buffer(val)
        if val.dtype.is_complex:
            twice = ir.mul(at, const(2))
            return (ir.load(buffer, twice, mask), ir.load(buffer, ir.add(twice, const(1)), mask))
        return ir.load(buffer, at, mask)

    def store(
        self, val: Value, index: Index, value: Any, mask: Expr | None = None
    ) -> list[ir.Stmt]:
        """Statements that write an element of a value of this kernel (row-major in its buffer)."""
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
        """A kernel whose statements are one block of `grid`, `number` telling which. Where there is
        `room` for so many at a time, no more are begun: they take one number after the other."""
        loop = ir.For(block, ZERO, self.scalar_arg(grid), "grid", body)
        self.persistent = bool(max_resident_blocks)
        grid = min(grid, max_resident_blocks or grid)
        return self.finish(name, [loop], -(-grid // self.packed_blocks) * self.cluster_size, notes)

    def finish(
        self, name: str, body: list[ir.Stmt], grid: int, notes: tuple[str, ...]
    ) -> LoweredKernel:
        """The kernel with these statements, and what it has to be given."""
        buffers = (*self.buffers.values(), *self.scratch)
        scalars: list[tuple[str, DType]] = []
        values: list[Any] = []
        for n, slot in self.dims.items():
            scalars.append((slot.attr, dt.int64))
            values.append(n)
        for i, n in enumerate(self.scalar_args):
            scalars.append((f"s{i}", dt.int64))
            values.append(n)
        for place, val in enumerate(self.constants):
            part = dt.compute_dtype(dt.real_of(val.dtype))
            if val.dtype.is_complex:
                scalars += [(f"c{place}r", part), (f"c{place}i", part)]
                values += [(val.params[1], "real"), (val.params[1], "imag")]
            else:
                scalars.append((f"c{place}", dt.int64 if part is dt.bool_ else part))
                values.append((val.params[1], "whole"))
        small = self.small and not self.block_size
        kernel = ir.Kernel(
            *(name, buffers, tuple(scalars), body, notes, small),
            *(self.block_size, self.packed_blocks, self.cluster_size, self.flags, self.persistent),
        )
        sizes = {slot.attr: n for n, slot in self.dims.items()}
        sizes.update({f"s{i}": n for i, n in enumerate(self.scalar_args)})
        scratch = [b.count(sizes) * b.dtype.itemsize for b in self.scratch if b.size]
        return LoweredKernel(kernel, list(self.buffers), values, grid, scratch)

    # -- values -----------------------------------------------------------------------------------

    def value(self, val: Value, index: Index, mask: Expr | None = None) -> Any:
        """Element `index` of `val` (a pair if complex); nothing is read where the mask is false."""
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

    def _rule(self, val: Value, index: Index, mask: Expr | None) -> Rule:
        if val in self.bindings:
            held = self.bindings[val](index)
            if held is not None:
                return held
        if val in self.layouts:
            return self.load(val, index, mask)
        if val.kind == "elementwise" or val.op == "barrier":
            args = []
            for x in val.inputs:
                args.append((yield x, aligned(x, index), mask))
            sources = [x.dtype for x in val.inputs]
            return lower(val.op, args, sources, val.dtype, val.params)
        rule = RULES.get(val.op)
        if rule is None:
            raise AssertionError(f"{val.op} is neither in memory nor an expression")
        return (yield from rule(self, val, index, mask))
