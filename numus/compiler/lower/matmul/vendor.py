"""Contraction groups that a vendor's library does: plain matrices in, a bias with them, what else
follows afterwards.
"""

from __future__ import annotations

from typing import NamedTuple

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.strided_view import strided_view
from numus.compiler.graph.value import Value, walk
from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.lower.loops import lower_loops
from numus.kernels.vendor.matmul import BIASED, Matrix, Product
from numus.kernels.vendor.registry import choose
from numus.shapes import Shape, row_major
from numus.target import Target


def lower_vendor_product(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel] | None:
    """The steps of a group whose product a library does; None where numus does it itself."""
    product = group.members[0]
    a, b = product.inputs
    if product.size == 0 or a.shape[2] == 0 or a.dtype is not b.dtype:
        return None
    rounds = product.params == "tf32" and a.dtype is dt.float32
    if product.params is not None and not rounds:  # another precision: numus's kernels know it
        return None
    layouts = group.input_layouts(layouts)
    found = [_matrix(x, layouts) for x in (a, b)]
    copied = sum(2 * nbytes(x) for x, place in zip((a, b), found, strict=True) if place is None)
    left, right = (
        place[1] if place is not None else Matrix(0, x.shape[1] * x.shape[2], x.shape[2], False)
        for x, place in zip((a, b), found, strict=True)
    )
    batch, m, n = product.shape
    sizes = (batch, m, n, a.shape[2], a.dtype.name, product.dtype.name, left, right)
    vendor, bias, result = None, _bias(group, layouts), product
    if bias is not None:
        tail = [v for v in group.members[1:] if v is not bias.total]
        extra = copied + (2 * nbytes(product) if tail else 0)
        question = Product(*sizes, extra, bool(tail), rounds, bias=True, copies=copied > 0)
        vendor, result = choose(BIASED, question, target), bias.total
    if vendor is None:
        bias, tail, result = None, group.members[1:], product
        extra = copied + (2 * nbytes(product) if tail else 0)
        question = Product(*sizes, extra, bool(tail), rounds, copies=copied > 0)
        vendor = choose("contract", question, target)
    if vendor is None:
        return None
    steps: list[LoweredKernel] = []
    sources: list[Value] = []

    def copy(x: Value) -> Value:
        made = Value.fresh("copy", "barrier", (x,), None, x.shape, x.dtype)
        alone = FusionGroup.of_stored(made, group.position)
        steps.extend(lower_loops(alone, layouts, target))
        return made

    sources = [
        place[0] if place is not None else copy(x) for x, place in zip((a, b), found, strict=True)
    ]
    if bias is not None:
        sources.append(bias.vector if bias.vector in layouts else copy(bias.vector))
    access = ["read"] * len(sources) + ["write"]
    buffers = tuple(
        ir.Buffer(f"b{i}", dt.real_of(v.dtype), how)
        for i, (v, how) in enumerate(zip((*sources, result), access, strict=True))
    )
    notes = (product.op,) if bias is None else (product.op, "add")
    kernel = ir.Kernel(vendor.name, buffers, (), [], notes, vendor=vendor, problem=question)
    steps.append(LoweredKernel(kernel, [*sources, result], [], 1, []))
    if tail:
        rest = FusionGroup(tail[0], group.position)
        rest.members = tail
        rest.stored = group.stored - {product, result}
        steps += lower_loops(rest, {**layouts, result: row_major(result.shape)}, target)
    return steps


class _Bias(NamedTuple):
    """A vector that is added to every row of a product, and nothing else is done to it before."""

    total: Value  # the sum
    vector: Value


def _bias(group: FusionGroup, layouts: dict[Value, Shape]) -> _Bias | None:
    product, *tail = group.members
    if product in group.stored or product.dtype not in (dt.float32, dt.float16, dt.bfloat16):
        return None
    ahead = walk(tail, lambda v: v not in layouts and v is not product)
    users = [v for v in ahead if product in v.inputs]
    if len(users) != 1 or users[0].op != "add" or users[0].dtype is not product.dtype:
        return None
    (other,) = [x for x in users[0].inputs if x is not product] or [product]
    vector = other
    while vector not in layouts and vector.kind == "view":
        vector = vector.inputs[0]
    found = strided_view(other, {vector: layouts.get(vector, row_major(vector.shape))})
    if found is None or found.offset or vector.size != product.shape[2]:
        return None
    *outer, along = zip(other.shape, found.strides, strict=True)
    whole = along in ((vector.size, 1), (1, 0))  # memory is read from its beginning to its end
    alike = all(extent == 1 or step == 0 for extent, step in outer)
    return _Bias(users[0], vector) if whole and alike else None


def nbytes(x: Value) -> int:
    return x.size * x.dtype.itemsize


def _matrix(x: Value, layouts: dict[Value, Shape]) -> tuple[Value, Matrix] | None:
    """The value in whose memory an operand lies, and how; None where it is more than memory, or its
    lines are not contiguous."""
    found = strided_view(x, layouts)
    if found is None:
        return None
    step, row, column = found.strides
    _, rows, columns = x.shape
    if step < 0 or found.offset < 0:
        return None
    if (column == 1 or columns == 1) and (row >= columns or rows == 1):
        return found.base, Matrix(found.offset, step, max(row, columns), False)
    if (row == 1 or rows == 1) and (column >= rows or columns == 1):
        return found.base, Matrix(found.offset, step, max(column, rows), True)
    return None
