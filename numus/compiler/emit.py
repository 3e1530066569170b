"""From graph values to kernel-IR expressions: what is element `index` of a value?

Views change the index on its way down, elementwise operations combine what comes up, and stored
values are loaded. The rules are generators: `yield (value, index, mask)` asks for an operand, so
graphs of any depth need no recursion.

Sizes never become part of a kernel. Every extent and stride above 1 is a scalar slot; numbers that
are equal in this graph share a slot, which lets index arithmetic cancel symbolically.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from numus import dtypes as dt
from numus.compiler import ir
from numus.compiler.ir import Expr, const
from numus.compiler.local import Val
from numus.compiler.ranges import Extents, quotient, remainder
from numus.compiler.scalar_ops import cast_value, lower
from numus.dtypes import DType
from numus.kernels.math import exp_below
from numus.shapes import Shape, reshape_strides, row_major

Index = tuple[Expr, ...]
Request = tuple[Val, Index, Expr | None]
Rule = Generator[Request, Any, Any]

ZERO = const(0)


@dataclass(slots=True)
class Step:
    """A kernel and what one call of it takes."""

    kernel: ir.Kernel
    buffers: list[Val]  # in the order of the kernel's buffers; scratch comes after them
    scalars: list[Any]  # numbers, or (constant, part) to be filled in at launch
    grid: int
    scratch: list[int]  # bytes per worker of each scratch buffer

    def held(self, workers: int) -> int:
        """Bytes of scratch memory if so many may take part; there is one for each block at most."""
        return min(workers, self.grid) * sum(self.scratch)


class Emitter:
    """Builds the expressions of one kernel and collects its buffers and slots.

    `layouts` gives the strides of every value that is in memory; `known` the values that the kernel
    holds in registers, as functions of the index (None: not at this one).
    """

    def __init__(self, layouts: dict[Val, Shape], small: bool = False, group: int = 0) -> None:
        self.layouts = layouts
        self.small = small  # whether there is so little data that short code beats quick code
        self.group = group  # threads of a group, where lanes are such
        self.pack = 1  # groups of a block, where they share nothing
        self.spread = 1  # blocks of a group
        self.board: tuple[ir.Buffer, int] | None = None  # on which they tell each other something
        self.lockstep = False  # and whether they are lanes of a vector after all
        self.unit = 1  # sizes that are multiples of it are written so, for whoever asks
        self.known: dict[Val, Callable[[Index], Any]] = {}
        self.extents: Extents = {}
        self.buffers: dict[Val, ir.Buffer] = {}
        self.scratch: list[ir.Buffer] = []
        self.numbers: dict[int, Expr] = {}  # size or stride -> its slot
        self.parameters: list[int] = []  # what the schedule chose: block sizes, counts
        self.constants: dict[Val, Any] = {}  # constant -> its slot expression(s)
        self.touched: list[Expr] = []  # where in memory, and counters: loops are chosen by these
        # parts of a larger value: part -> (whole, axis, where it starts along that axis)
        self.redirect: dict[Val, tuple[Val, int, int]] = {}
        self._memo: dict[Request, Any] = {}

    # -- numbers ----------------------------------------------------------------------------------

    def number(self, n: int) -> Expr:
        """A size, stride or offset as a value given at launch."""
        if -1 <= n <= 1:
            return const(n)
        if self.unit > 1 and n > 1 and n % self.unit == 0:
            many = ir.mul(self._slot(n // self.unit), const(self.unit))
            self.extents[many] = None
            return many
        return self._slot(n)

    def _slot(self, n: int) -> Expr:
        found = self.numbers.get(n)
        if found is None:
            found = self.numbers[n] = ir.scalar(f"n{len(self.numbers)}")
            if n > 0:
                self.extents[found] = None
        return found

    def parameter(self, n: int) -> Expr:
        """A number of the schedule's own: always a slot, so that its value shapes no code."""
        self.parameters.append(n)
        return ir.scalar(f"s{len(self.parameters) - 1}")

    def variable(self, name: str, extent: Expr) -> Expr:
        """A loop variable that runs below `extent`."""
        v = ir.var(name)
        self.extents[v] = extent
        return v

    def hold(self, val: Val, value: Any, at: Index | None = None) -> None:
        """From here on, the kernel has this value in registers: for this index, or for any."""
        self.known[val] = lambda index: value if at is None or index == at else None

    def forget(self) -> None:
        """What is held has changed: nothing that was emitted before stands for it any more."""
        self._memo.clear()

    def hold_next(self, val: Val, value: Any) -> None:
        """Hold another value than before, at whatever index: nothing made of the old one stays."""
        self._memo.clear()
        self.hold(val, value)

    # -- memory -----------------------------------------------------------------------------------

    def buffer(self, val: Val, access: str = "read") -> ir.Buffer:
        found = self.buffers.get(val)
        if found is None:
            dtype = dt.real_of(val.dtype)
            found = ir.Buffer(f"b{len(self.buffers)}", dtype, access)
            self.buffers[val] = found
        elif access == "write":
            found.access = "write"
        return found

    def address(self, val: Val, index: Index, strides: Shape | None = None) -> Expr:
        """Where an element lies in its buffer."""
        return self._address(index, val.shape, self.layouts[val] if strides is None else strides)

    def _address(self, index: Index, shape: Shape, strides: Shape) -> Expr:
        total = ZERO
        for i, s, n in zip(index, strides, shape, strict=True):
            if n != 1 and s != 0:
                total = ir.add(total, ir.mul(i, self.number(s)))
        return total

    def load(
        self, val: Val, index: Index, mask: Expr | None, seen: tuple[Shape, Shape] | None = None
    ) -> Any:
        """An element of a value in memory; by an index of its own, or of the shape and strides that
        it is `seen` with.
        """
        at = self.address(val, index) if seen is None else self._address(index, *seen)
        self.touched.append(at)
        buffer = self.buffer(val)
        if val.dtype.is_complex:
            twice = ir.mul(at, const(2))
            return (ir.load(buffer, twice, mask), ir.load(buffer, ir.add(twice, const(1)), mask))
        return ir.load(buffer, at, mask)

    def store(self, val: Val, index: Index, value: Any, mask: Expr | None = None) -> list[ir.Stmt]:
        """Statements that write an element of a value of this kernel (row-major in its buffer)."""
        if val in self.redirect:
            val, axis, start = self.redirect[val]
            moved = ir.add(index[axis], self.number(start))
            index = (*index[:axis], moved, *index[axis + 1 :])
        at = self.address(val, index, row_major(val.shape))
        self.touched.append(at)
        buffer = self.buffer(val, "write")
        if val.dtype.is_complex:
            twice = ir.mul(at, const(2))
            return [
                ir.Store(buffer, twice, value[0], mask),
                ir.Store(buffer, ir.add(twice, const(1)), value[1], mask),
            ]
        return [ir.Store(buffer, at, value, mask)]

    # -- the finished kernel ----------------------------------------------------------------------

    def blocks(
        self, name: str, number: Expr, body: list[ir.Stmt], grid: int, notes: tuple[str, ...]
    ) -> Step:
        """A kernel whose statements are one block of `grid`, `number` telling which."""
        loop = ir.For(number, ZERO, self.parameter(grid), "grid", body)
        return self.finish(name, [loop], -(-grid // self.pack) * self.spread, notes)

    def finish(self, name: str, body: list[ir.Stmt], grid: int, notes: tuple[str, ...]) -> Step:
        """The kernel with these statements, and what it has to be given."""
        buffers = (*self.buffers.values(), *self.scratch)
        scalars: list[tuple[str, DType]] = []
        values: list[Any] = []
        for n, slot in self.numbers.items():
            scalars.append((slot.attr, dt.int64))
            values.append(n)
        for i, n in enumerate(self.parameters):
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
        small = self.small and (self.lockstep or not self.group)
        kernel = ir.Kernel(
            *(name, buffers, tuple(scalars), body, notes, small),
            *(self.group, self.pack, self.spread, self.board),
        )
        sizes = {slot.attr: n for n, slot in self.numbers.items()}
        sizes.update({f"s{i}": n for i, n in enumerate(self.parameters)})
        scratch = [b.count(sizes) * b.dtype.itemsize for b in self.scratch if b.size]
        return Step(kernel, list(self.buffers), values, grid, scratch)

    # -- values -----------------------------------------------------------------------------------

    def value(self, val: Val, index: Index, mask: Expr | None = None) -> Any:
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

    def _rule(self, val: Val, index: Index, mask: Expr | None) -> Rule:
        if val in self.known:
            held = self.known[val](index)
            if held is not None:
                return held
        if val in self.layouts:
            return self.load(val, index, mask)
        if val.kind == "elementwise" or val.op == "barrier":
            args = []
            for x in val.inputs:
                args.append((yield x, _align(x, index), mask))
            if self.lockstep and val.op == "exp" and _is_below_maximum(val.inputs[0]):
                return exp_below(args[0])  # without the branches that others skip
            sources = [x.dtype for x in val.inputs]
            return lower(val.op, args, sources, val.dtype, val.params)
        rule = _RULES.get(val.op)
        if rule is None:
            raise AssertionError(f"{val.op} is neither in memory nor an expression")
        return (yield from rule(self, val, index, mask))


def _is_below_maximum(x: Val) -> bool:
    """Whether a value is what numbers are less the largest of their row: never above zero."""
    if x.op != "sub" or x.inputs[1].op != "reshape":
        return False
    numbers, top = x.inputs[0], x.inputs[1].inputs[0]
    if top.op != "reduce_max" or top.inputs[0] is not numbers or numbers.dtype.is_narrow_float:
        return False
    kept = tuple(1 if i in top.params else n for i, n in enumerate(numbers.shape))
    return x.inputs[1].shape == kept


def _align(x: Val, index: Index) -> Index:
    """The index of a broadcast operand."""
    lead = len(index) - len(x.shape)
    return tuple(ZERO if n == 1 else i for n, i in zip(x.shape, index[lead:], strict=True))


# -- sources --------------------------------------------------------------------------------------


def _constant(e: Emitter, val: Val, index: Index, mask: Expr | None) -> Rule:
    number = val.params[0]
    if number is not None:
        real = dt.compute_dtype(dt.real_of(val.dtype))
        return cast_value(const(number, real), real, val.dtype)
    found = e.constants.get(val)
    if found is None:
        slot = f"c{len(e.constants)}"
        part = dt.compute_dtype(dt.real_of(val.dtype))
        if val.dtype.is_complex:
            found = (ir.scalar(slot + "r", part), ir.scalar(slot + "i", part))
        elif part is dt.bool_:
            found = ir.scalar(slot, dt.int64).ne(const(0))
        else:
            found = ir.scalar(slot, part).cast(val.dtype)
        e.constants[val] = found
    return found
    yield


def _iota(e: Emitter, val: Val, index: Index, mask: Expr | None) -> Rule:
    e.touched.append(index[0])
    return index[0].cast(val.dtype)
    yield


# -- views ----------------------------------------------------------------------------------------


def _reshape(e: Emitter, val: Val, index: Index, mask: Expr | None) -> Rule:
    x = val.inputs[0]
    if x in e.layouts and x not in e.known:
        strides = reshape_strides(x.shape, e.layouts[x], val.shape)
        if strides is not None:  # axes that are one in memory need not be taken apart
            return e.load(x, index, mask, (val.shape, strides))
    return (yield x, regroup(e, index, val.shape, x.shape), mask)


def regroup(e: Emitter, index: Index, shape: Shape, target: Shape) -> Index:
    """The index under another shape of the same size.

    An axis is divided by itself where the extents allow it (64 x 56 as 8 x 448 takes channels
    apart, not pixels), else within the smallest groups of axes whose products agree.
    """
    out: list[Expr] = [ZERO] * len(target)
    old = [(i, n) for i, n in zip(index, shape, strict=True) if n != 1]
    new = [k for k, n in enumerate(target) if n != 1]
    if 0 in shape:
        return tuple(out)

    def part(first: int) -> tuple[Expr, int]:
        """The upper digit of the next axis, of extent `first`; the lower one stays."""
        i, n = old.pop(0)
        if n > first and n % first == 0:
            below = e.number(n // first)
            if i.op == "add":  # it may need no division for what its terms stay below: loops know
                e.touched.append(i)
            old.insert(0, (remainder(i, below, e.extents), n // first))
            return quotient(i, below, e.extents), first
        return i, n

    while old:
        axes = [new.pop(0)]
        n = target[axes[0]]
        group = [part(n)]
        m = group[0][1]
        while m != n:
            if m < n:
                group.append(part(n // m) if n % m == 0 else old.pop(0))
                m *= group[-1][1]
            else:
                axes.append(new.pop(0))
                n *= target[axes[-1]]
        linear = ZERO
        steps = row_major(tuple(extent for _, extent in group))
        for (i, _), step in zip(group, steps, strict=True):
            linear = ir.add(linear, ir.mul(i, e.number(step)))
        if len(axes) > 1 and linear.op == "add":
            e.touched.append(linear)
        _spread(e, linear, target, axes, out)
    return tuple(out)


def _spread(e: Emitter, linear: Expr, target: Shape, axes: list[int], out: list[Expr]) -> None:
    """Write a linear index as digits of these axes of `target`."""
    for place, k in enumerate(axes):
        below = 1
        for q in axes[place + 1 :]:
            below *= target[q]
        digit = quotient(linear, e.number(below), e.extents)
        if place:
            digit = remainder(digit, e.number(target[k]), e.extents)
        out[k] = digit


def _permute(e: Emitter, val: Val, index: Index, mask: Expr | None) -> Rule:
    out: list[Expr] = [ZERO] * len(index)
    for i, a in enumerate(val.params):
        out[a] = index[i]
    return (yield val.inputs[0], tuple(out), mask)


def _broadcast(e: Emitter, val: Val, index: Index, mask: Expr | None) -> Rule:
    return (yield val.inputs[0], _align(val.inputs[0], index), mask)


def _slice(e: Emitter, val: Val, index: Index, mask: Expr | None) -> Rule:
    starts, steps = val.params
    moved = tuple(
        ir.add(ir.mul(i, e.number(step)), e.number(start))
        for i, start, step in zip(index, starts, steps, strict=True)
    )
    return (yield val.inputs[0], moved, mask)


def _copy(e: Emitter, val: Val, index: Index, mask: Expr | None) -> Rule:
    return (yield val.inputs[0], index, mask)


def _both(a: Expr | None, b: Expr | None) -> Expr | None:
    if a is None or b is None:
        return a if b is None else b
    return a & b


def _masked(value: Any, inside: Expr | None, dtype: DType) -> Any:
    """The value where `inside`, zero elsewhere."""
    if inside is None:
        return value
    if dtype.is_complex:
        zero = const(0.0, value[0].dtype)
        return (ir.select(inside, value[0], zero), ir.select(inside, value[1], zero))
    if dtype.is_narrow_float:
        return ir.select(inside, value, const(0.0, dt.float32).cast(dtype))
    return ir.select(inside, value, const(0, dtype))


def _pad(e: Emitter, val: Val, index: Index, mask: Expr | None) -> Rule:
    x = val.inputs[0]
    low, high, inner = val.params
    moved = []
    inside: Expr | None = None
    for i, a, b, gap, n in zip(index, low, high, inner, x.shape, strict=True):
        at = ir.sub(i, e.number(a)) if a else i
        if a or b or gap:
            e.touched.append(at)
        if gap:
            step = e.number(gap + 1)
            inside = _both(inside, ir.irem(at, step).eq(0))
            if a:
                inside = _both(inside, at >= 0)
            at = ir.idiv(at, step)
        elif a:
            inside = _both(inside, at >= 0)
        if b or gap:
            inside = _both(inside, at < e.number(n))
        moved.append(at)
    value = yield x, tuple(moved), _both(mask, inside)
    return _masked(value, inside, val.dtype)


def _shear(e: Emitter, val: Val, index: Index, mask: Expr | None) -> Rule:
    x = val.inputs[0]
    axis, along, extent, scale, slope, offset, divide = val.params
    i, j = index[axis], index[along]
    at = ir.add(ir.add(ir.mul(i, e.number(scale)), ir.mul(j, e.number(slope))), e.number(offset))
    e.touched.append(at)
    inside: Expr | None = None
    ends = [
        p * scale + q * slope + offset for p in (0, extent - 1) for q in (0, val.shape[along] - 1)
    ]
    if min(ends) < 0:
        inside = at >= 0
    if divide != 1:
        inside = _both(inside, ir.irem(at, e.number(divide)).eq(0))
        at = ir.idiv(at, e.number(divide))
    if max(ends) // divide >= x.shape[axis]:
        inside = _both(inside, at < e.number(x.shape[axis]))
    moved = tuple(at if k == axis else v for k, v in enumerate(index))
    value = yield x, moved, _both(mask, inside)
    return _masked(value, inside, val.dtype)


# -- gather ---------------------------------------------------------------------------------------


def _gather(e: Emitter, val: Val, index: Index, mask: Expr | None) -> Rule:
    x, *places = val.inputs
    axes = val.params
    lead = len(places[0].shape)
    moved: list[Expr] = [ZERO] * len(x.shape)
    rest = [i for i in range(len(x.shape)) if i not in axes]
    for i, k in zip(rest, index[lead:], strict=True):
        moved[i] = k
    for p, axis in zip(places, axes, strict=True):
        at = yield p, _align(p, index[:lead]), mask
        if p.op == "iota" and p.shape[0] <= x.shape[axis]:
            moved[axis] = at
        else:  # no index leaves its axis
            at = ir.maximum(at, 0)
            moved[axis] = ir.minimum(at, ir.sub(e.number(x.shape[axis]), const(1)))
    return (yield x, tuple(moved), mask)


def _pick(e: Emitter, val: Val, index: Index, mask: Expr | None) -> Rule:
    """One element of each row, zero where its place is outside."""
    x, place = val.inputs
    axis, extent = val.params
    at = (yield place, _align(place, index), mask).cast(ir.INDEX)
    inside = (at >= 0) & (at < e.number(extent))
    near = ir.minimum(ir.maximum(at, 0), ir.sub(e.number(extent), const(1)))
    moved = (*index[:axis], near, *index[axis:])
    value = yield x, _align(x, moved), mask
    return _masked(value, inside, val.dtype)


def _extent(e: Emitter, val: Val, index: Index, mask: Expr | None) -> Rule:
    """A count of elements, as a number of this value's dtype."""
    return e.number(val.params).cast(val.dtype)
    yield


_RULES: dict[str, Callable[[Emitter, Val, Index, Expr | None], Rule]] = {
    "constant": _constant,
    "iota": _iota,
    "reshape": _reshape,
    "permute": _permute,
    "broadcast": _broadcast,
    "slice": _slice,
    "pad": _pad,
    "shear": _shear,
    "gather": _gather,
    "pick": _pick,
    "extent": _extent,
    "copy": _copy,
}

INLINE = frozenset(_RULES) - {"copy"} | {"barrier"}


def is_inline(val: Val) -> bool:
    """Whether a value can be computed inside whichever kernel uses it."""
    return val.kind == "elementwise" or val.op in INLINE
