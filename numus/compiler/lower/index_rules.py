"""Which elements of its operands an element of a value is made of, for what needs no memory.

Views change the index on its way down; sources are computed from it. Rules are generators: `yield
(value, index, mask)` asks for an element of an operand, so graphs of any depth need no recursion.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.elementwise import cast_value
from numus.compiler.lower.index_simplify import quotient, remainder
from numus.dtypes import DType
from numus.ir import Expr, const
from numus.shapes import Shape, reshape_strides, row_major

if TYPE_CHECKING:
    from numus.compiler.lower.emitter import Emitter

Index = tuple[Expr, ...]
Request = tuple[Value, Index, Expr | None]
Rule = Generator[Request, Any, Any]

ZERO = const(0)


def aligned(x: Value, index: Index) -> Index:
    """The index of a broadcast operand."""
    lead = len(index) - len(x.shape)
    return tuple(ZERO if n == 1 else i for n, i in zip(x.shape, index[lead:], strict=True))


# -- sources --------------------------------------------------------------------------------------


def _constant(e: Emitter, val: Value, index: Index, mask: Expr | None) -> Rule:
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


def _iota(e: Emitter, val: Value, index: Index, mask: Expr | None) -> Rule:
    e.accesses.append(index[0])
    return index[0].cast(val.dtype)
    yield


# -- views ----------------------------------------------------------------------------------------


def _reshape(e: Emitter, val: Value, index: Index, mask: Expr | None) -> Rule:
    x = val.inputs[0]
    if x in e.layouts and x not in e.bindings:
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
            below = e.dim(n // first)
            if i.op == "add":  # it may need no division for what its terms stay below: loops know
                e.accesses.append(i)
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
            linear = ir.add(linear, ir.mul(i, e.dim(step)))
        if len(axes) > 1 and linear.op == "add":
            e.accesses.append(linear)
        _spread(e, linear, target, axes, out)
    return tuple(out)


def _spread(e: Emitter, linear: Expr, target: Shape, axes: list[int], out: list[Expr]) -> None:
    """Write a linear index as digits of these axes of `target`."""
    for place, k in enumerate(axes):
        below = 1
        for q in axes[place + 1 :]:
            below *= target[q]
        digit = quotient(linear, e.dim(below), e.extents)
        if place:
            digit = remainder(digit, e.dim(target[k]), e.extents)
        out[k] = digit


def _permute(e: Emitter, val: Value, index: Index, mask: Expr | None) -> Rule:
    out: list[Expr] = [ZERO] * len(index)
    for i, a in enumerate(val.params):
        out[a] = index[i]
    return (yield val.inputs[0], tuple(out), mask)


def _broadcast(e: Emitter, val: Value, index: Index, mask: Expr | None) -> Rule:
    return (yield val.inputs[0], aligned(val.inputs[0], index), mask)


def _slice(e: Emitter, val: Value, index: Index, mask: Expr | None) -> Rule:
    starts, steps = val.params
    moved = tuple(
        ir.add(ir.mul(i, e.dim(step)), e.dim(start))
        for i, start, step in zip(index, starts, steps, strict=True)
    )
    return (yield val.inputs[0], moved, mask)


def _copy(e: Emitter, val: Value, index: Index, mask: Expr | None) -> Rule:
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


def _pad(e: Emitter, val: Value, index: Index, mask: Expr | None) -> Rule:
    x = val.inputs[0]
    low, high, inner = val.params
    moved = []
    inside: Expr | None = None
    for i, a, b, gap, n in zip(index, low, high, inner, x.shape, strict=True):
        at = ir.sub(i, e.dim(a)) if a else i
        if a or b or gap:
            e.accesses.append(at)
        if gap:
            step = e.dim(gap + 1)
            inside = _both(inside, ir.irem(at, step).eq(0))
            if a:
                inside = _both(inside, at >= 0)
            at = ir.idiv(at, step)
        elif a:
            inside = _both(inside, at >= 0)
        if b or gap:
            inside = _both(inside, at < e.dim(n))
        moved.append(at)
    value = yield x, tuple(moved), _both(mask, inside)
    return _masked(value, inside, val.dtype)


def _shear(e: Emitter, val: Value, index: Index, mask: Expr | None) -> Rule:
    x = val.inputs[0]
    axis, along, extent, scale, slope, offset, divide = val.params
    i, j = index[axis], index[along]
    at = ir.add(ir.add(ir.mul(i, e.dim(scale)), ir.mul(j, e.dim(slope))), e.dim(offset))
    e.accesses.append(at)
    inside: Expr | None = None
    ends = [
        p * scale + q * slope + offset for p in (0, extent - 1) for q in (0, val.shape[along] - 1)
    ]
    if min(ends) < 0:
        inside = at >= 0
    if divide != 1:
        inside = _both(inside, ir.irem(at, e.dim(divide)).eq(0))
        at = ir.idiv(at, e.dim(divide))
    if max(ends) // divide >= x.shape[axis]:
        inside = _both(inside, at < e.dim(x.shape[axis]))
    moved = tuple(at if k == axis else v for k, v in enumerate(index))
    value = yield x, moved, _both(mask, inside)
    return _masked(value, inside, val.dtype)


# -- gather ---------------------------------------------------------------------------------------


def _gather(e: Emitter, val: Value, index: Index, mask: Expr | None) -> Rule:
    x, *places = val.inputs
    axes = val.params
    lead = len(places[0].shape)
    moved: list[Expr] = [ZERO] * len(x.shape)
    rest = [i for i in range(len(x.shape)) if i not in axes]
    for i, k in zip(rest, index[lead:], strict=True):
        moved[i] = k
    for p, axis in zip(places, axes, strict=True):
        at = yield p, aligned(p, index[:lead]), mask
        if p.op == "iota" and p.shape[0] <= x.shape[axis]:
            moved[axis] = at
        else:  # no index leaves its axis
            at = ir.maximum(at, 0)
            moved[axis] = ir.minimum(at, ir.sub(e.dim(x.shape[axis]), const(1)))
    return (yield x, tuple(moved), mask)


def _onehot_gather(e: Emitter, val: Value, index: Index, mask: Expr | None) -> Rule:
    """One element of each row, zero where its place is outside."""
    x, place = val.inputs
    axis, extent = val.params
    at = (yield place, aligned(place, index), mask).cast(ir.INDEX)
    inside = (at >= 0) & (at < e.dim(extent))
    near = ir.minimum(ir.maximum(at, 0), ir.sub(e.dim(extent), const(1)))
    moved = (*index[:axis], near, *index[axis:])
    value = yield x, aligned(x, moved), mask
    return _masked(value, inside, val.dtype)


def _extent(e: Emitter, val: Value, index: Index, mask: Expr | None) -> Rule:
    """A count of elements, as a number of this value's dtype."""
    return e.dim(val.params).cast(val.dtype)
    yield


RULES: dict[str, Callable[[Emitter, Value, Index, Expr | None], Rule]] = {
    "constant": _constant,
    "iota": _iota,
    "reshape": _reshape,
    "permute": _permute,
    "broadcast": _broadcast,
    "slice": _slice,
    "pad": _pad,
    "shear": _shear,
    "gather": _gather,
    "onehot_gather": _onehot_gather,
    "extent": _extent,
    "copy": _copy,
}

INLINE = frozenset(RULES) - {"copy"} | {"barrier"}


def is_inline(val: Value) -> bool:
    """Whether a value can be computed inside whichever kernel uses it."""
    return val.kind == "elementwise" or val.op in INLINE
