"""Index rules: views and sources as functions of the index, without memory.

A view maps the index of an element to one of its operand; a source is computed from the index.
"""

from __future__ import annotations

import itertools
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.elementwise import cast_value
from numus.compiler.lower.emitter import (
    INDEX_RULES,
    ZERO,
    Emitter,
    Index,
    Rule,
    broadcast_index,
    index_rule,
)
from numus.compiler.lower.index_simplify import quotient, recombined, remainder
from numus.compiler.lower.reducers import Reducer, reducer
from numus.dtypes import DType
from numus.ir import Expr, const
from numus.shapes import Shape, find_reshape_strides, row_major, size_of

# -- sources --------------------------------------------------------------------------------------


@index_rule("constant")
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


@index_rule("iota")
def _iota(e: Emitter, val: Value, index: Index, mask: Expr | None) -> Rule:
    e.accesses.append(index[0])
    return index[0].cast(val.dtype)
    yield


# -- views ----------------------------------------------------------------------------------------


@index_rule("reshape")
def _reshape(e: Emitter, val: Value, index: Index, mask: Expr | None) -> Rule:
    x = val.inputs[0]
    if x in e.layouts and x not in e.bindings:
        strides = find_reshape_strides(x.shape, e.layouts[x], val.shape)
        if strides is not None:  # contiguous axes need no division
            return e.load(x, index, mask, (val.shape, strides))
    return (yield x, reshape_index(e, index, val.shape, x.shape), mask)


def reshape_index(e: Emitter, index: Index, shape: Shape, target: Shape) -> Index:
    """The index under another shape of the same size.

    An axis is split by itself where the extents allow it (64 x 56 as 8 x 448 splits the 64), else
    the smallest spans of axes whose products agree are linearised and delinearised.
    """
    out: list[Expr] = [ZERO] * len(target)
    old = [(i, n) for i, n in zip(index, shape, strict=True) if n != 1]
    new = [k for k, n in enumerate(target) if n != 1]
    if 0 in shape:
        return tuple(out)

    def split(first: int) -> tuple[Expr, int]:
        """The outer index of the next axis, of extent `first`; the inner one is left over."""
        i, n = old.pop(0)
        if n > first and n % first == 0:
            # parts of 2 are part of the code: loads of each element twice are short vectors
            inner = const(2) if n == 2 * first else e.dim(n // first)
            if i.op == "add":  # loops with matching strides save the division
                e.accesses.append(i)
            old.insert(0, (remainder(i, inner, e.extents), n // first))
            return quotient(i, inner, e.extents), first
        return i, n

    while old:
        axes = [new.pop(0)]
        n = target[axes[0]]
        span = [split(n)]
        m = span[0][1]
        while m != n:
            if m < n:
                span.append(split(n // m) if n % m == 0 else old.pop(0))
                m *= span[-1][1]
            else:
                axes.append(new.pop(0))
                n *= target[axes[-1]]
        linear = ZERO
        extents = tuple(extent for _, extent in span)
        indices = [i for i, _ in span]
        for k in range(len(span) - 1, 0, -1):
            inner = e.dim(extents[k])
            indices[k - 1], indices[k] = recombined(indices[k - 1], indices[k], inner)
        for i, step in zip(indices, row_major(extents), strict=True):
            linear = ir.add(linear, ir.mul(i, e.dim(step)))
        if len(axes) > 1 and linear.op == "add":
            e.accesses.append(linear)
        _delinearize(e, linear, target, axes, out)
    return tuple(out)


def _delinearize(e: Emitter, linear: Expr, target: Shape, axes: list[int], out: list[Expr]) -> None:
    """Set the indices of these axes of `target` from a linear one."""
    for n, k in enumerate(axes):
        inner = size_of(tuple(target[q] for q in axes[n + 1 :]))
        out[k] = quotient(linear, e.dim(inner), e.extents)
        if n:
            out[k] = remainder(out[k], e.dim(target[k]), e.extents)


@index_rule("permute")
def _permute(e: Emitter, val: Value, index: Index, mask: Expr | None) -> Rule:
    out: list[Expr] = [ZERO] * len(index)
    for i, a in enumerate(val.params):
        out[a] = index[i]
    return (yield val.inputs[0], tuple(out), mask)


@index_rule("broadcast")
def _broadcast(e: Emitter, val: Value, index: Index, mask: Expr | None) -> Rule:
    return (yield val.inputs[0], broadcast_index(val.inputs[0], index), mask)


@index_rule("slice")
def _slice(e: Emitter, val: Value, index: Index, mask: Expr | None) -> Rule:
    starts, steps = val.params
    # a step of 2 along the lanes is part of the code: such loads are vector loads, not gathers
    factors = [
        ir.const(2) if axis == len(steps) - 1 and step == 2 else e.dim(step)
        for axis, step in enumerate(steps)
    ]
    moved = tuple(
        ir.add(e.times(i, factor), e.dim(start))
        for i, start, factor in zip(index, starts, factors, strict=True)
    )
    return (yield val.inputs[0], moved, mask)


@index_rule("copy")
def _copy(e: Emitter, val: Value, index: Index, mask: Expr | None) -> Rule:
    return (yield val.inputs[0], index, mask)


def _both(a: Expr | None, b: Expr | None) -> Expr | None:
    if a is None or b is None:
        return a if b is None else b
    return a & b


def _masked(value: Any, in_bounds: Expr | None, dtype: DType) -> Any:
    """The value where `inside`, zero elsewhere."""
    if in_bounds is None:
        return value
    if dtype.is_complex:
        zero = const(0.0, value[0].dtype)
        return (ir.select(in_bounds, value[0], zero), ir.select(in_bounds, value[1], zero))
    if dtype.is_low_precision:
        return ir.select(in_bounds, value, const(0.0, dt.float32).cast(dtype))
    return ir.select(in_bounds, value, const(0, dtype))


@index_rule("pad")
def _pad(e: Emitter, val: Value, index: Index, mask: Expr | None) -> Rule:
    x = val.inputs[0]
    low, high, inner = val.params
    moved = []
    in_bounds: Expr | None = None
    for i, a, b, dilation, n in zip(index, low, high, inner, x.shape, strict=True):
        at = ir.sub(i, e.dim(a)) if a else i
        if a or b or dilation:
            e.accesses.append(at)
        if dilation:
            step = e.dim(dilation + 1)
            in_bounds = _both(in_bounds, ir.irem(at, step).eq(0))
            if a:
                in_bounds = _both(in_bounds, at >= 0)
            at = ir.idiv(at, step)
        elif a:
            in_bounds = _both(in_bounds, at >= 0)
        if b or dilation:
            in_bounds = _both(in_bounds, at < e.dim(n))
        moved.append(at)
    value = yield x, tuple(moved), _both(mask, in_bounds)
    return _masked(value, in_bounds, val.dtype)


@index_rule("shear")
def _shear(e: Emitter, val: Value, index: Index, mask: Expr | None) -> Rule:
    x = val.inputs[0]
    axis, along, extent, scale, slope, offset, divide = val.params
    i, j = index[axis], index[along]
    at = ir.add(ir.add(e.times(i, e.dim(scale)), ir.mul(j, e.dim(slope))), e.dim(offset))
    e.accesses.append(at)
    in_bounds: Expr | None = None
    ends = [
        p * scale + q * slope + offset for p in (0, extent - 1) for q in (0, val.shape[along] - 1)
    ]
    if min(ends) < 0:
        in_bounds = at >= 0
    if divide != 1:
        in_bounds = _both(in_bounds, ir.irem(at, e.dim(divide)).eq(0))
        at = ir.idiv(at, e.dim(divide))
    if max(ends) // divide >= x.shape[axis]:
        in_bounds = _both(in_bounds, at < e.dim(x.shape[axis]))
    moved = tuple(at if k == axis else v for k, v in enumerate(index))
    value = yield x, moved, _both(mask, in_bounds)
    return _masked(value, in_bounds, val.dtype)


# -- gather ---------------------------------------------------------------------------------------


@index_rule("gather")
def _gather(e: Emitter, val: Value, index: Index, mask: Expr | None) -> Rule:
    x, *indices = val.inputs
    axes = val.params
    lead = len(indices[0].shape)
    moved: list[Expr] = [ZERO] * len(x.shape)
    rest = [i for i in range(len(x.shape)) if i not in axes]
    for i, k in zip(rest, index[lead:], strict=True):
        moved[i] = k
    for p, axis in zip(indices, axes, strict=True):
        at = yield p, broadcast_index(p, index[:lead]), mask
        if p.op == "iota" and p.shape[0] <= x.shape[axis]:
            moved[axis] = at
        else:  # clamped to the axis
            at = ir.maximum(at, 0)
            moved[axis] = ir.minimum(at, ir.sub(e.dim(x.shape[axis]), const(1)))
    return (yield x, tuple(moved), mask)


@index_rule("onehot_gather")
def _onehot_gather(e: Emitter, val: Value, index: Index, mask: Expr | None) -> Rule:
    """One element of each row, zero where its index is out of bounds."""
    x, position = val.inputs
    axis, extent = val.params
    at = (yield position, broadcast_index(position, index), mask).cast(ir.INDEX)
    in_bounds = (at >= 0) & (at < e.dim(extent))
    clamped = ir.minimum(ir.maximum(at, 0), ir.sub(e.dim(extent), const(1)))
    moved = (*index[:axis], clamped, *index[axis:])
    value = yield x, broadcast_index(x, moved), mask
    return _masked(value, in_bounds, val.dtype)


@index_rule("updated_rows")
def _updated_rows(e: Emitter, val: Value, index: Index, mask: Expr | None) -> Rule:
    """The one update of a scatter where its indices are, elsewhere the base; the comparison has the
    update's place first."""
    x, updates, *indices = val.inputs
    axes, _ = val.params
    rest = [index[a] for a in range(len(index)) if a not in axes]
    is_there: Expr | None = None
    for p, axis in zip(indices, axes, strict=True):
        at = yield p, (ZERO,) * len(p.shape), mask
        is_there = _both(is_there, at.cast(dt.int64).eq(index[axis]))
    lead = (ZERO,) * len(indices[0].shape)
    new = yield updates, broadcast_index(updates, (*lead, *rest)), mask
    old = yield x, index, mask
    assert is_there is not None
    return ir.select(is_there, new, old)


@index_rule("extent")
def _extent(e: Emitter, val: Value, index: Index, mask: Expr | None) -> Rule:
    """An element count in this value's dtype."""
    return e.dim(val.params).cast(val.dtype)
    yield


# -- reductions of few terms ----------------------------------------------------------------------

_TERMS_IN_ORDER = 16
REDUCTIONS_OF_TERMS = ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min")


def _merged_term(how: Reducer, total: list[Expr], term: list[Expr]) -> list[Expr]:
    """The terms of a sum of products are rounded once, as those of a matrix product are."""
    (product,) = term
    if how.op == "sum" and product.op == "mul" and product.dtype.kind == "float":
        x, y = product.args
        return [ir.fma(x, y, total[0], allow_unfused=True)]
    return how.merge(total, term)


def _reduced_terms(e: Emitter, val: Value, index: Index, mask: Expr | None) -> Rule:
    """A nested reduction (`fusion/nested.py`): an expression of all of its terms. Those of some
    are combined in order, and the results pairwise: a short way through many terms, and accurate.
    """
    x, how = val.inputs[0], reducer(val)
    parts: list[list[Expr]] = []
    extents = [x.shape[a] for a in val.params]
    for number, taps in enumerate(itertools.product(*map(range, extents))):
        rest, at = iter(index), dict(zip(val.params, taps, strict=True))
        point = tuple(const(at[i]) if i in at else next(rest) for i in range(len(x.shape)))
        value = yield x, point, mask
        if val.op not in REDUCTIONS_OF_TERMS:  # positions count from the first term on
            parts[:] = [how.step(parts[0] if parts else how.initial(), value, const(number))]
        elif number % _TERMS_IN_ORDER == 0:
            parts.append(how.element(value))
        else:
            parts[-1] = _merged_term(how, parts[-1], how.element(value))
    return how.finish(how.pairwise(parts))


INLINE = frozenset(INDEX_RULES) - {"copy"} | {"barrier"}

for _op in (*REDUCTIONS_OF_TERMS, "argmax", "argmin"):
    index_rule(_op)(_reduced_terms)


def is_inline(val: Value) -> bool:
    """A value that any kernel which uses it can compute."""
    return val.kind == "elementwise" or val.op in INLINE
